"""Gated delta rule with gates of its own for what is erased and what is written (GDN-2)."""

from __future__ import annotations

from fla_core.contract import Contract, TensorSpec
from fla_core.contracts import _shared as s

GDN2 = Contract(
    name="gdn2",
    revision=1,
    equation=(
        "S~_t = diag(exp(g_t)) S_{t-1};  e_t = w_t*v_t - S~_t^T (b_t*k_t);  S_t = S~_t + k_t e_t^T;"
        "  o_t = scale S_t^T q_t"
    ),
    source="flash-linear-attention 0.6.0, chunk_gdn2",
    inputs=(
        s.Q,
        s.K,
        s.values("HV"),
        s.CHANNEL_GATE,
        TensorSpec("b", "B T HV K", "erasing strength of key channels, in [0, 2]", "float"),
        TensorSpec("w", "B T HV V", "writing strength of value channels, in [0, 1]", "float"),
        s.RATE,
        s.BIAS,
        s.initial_state("HV"),
    ),
    outputs=(*s.outputs("HV"), s.STATES),
    flags=("final_state", "l2norm", "gate", "lower_bound", "states", "state_v_first"),
    options=("lower_bound",),
    domain=s.domain(
        "HV",
        "gate",
        "lower_bound",
        "A_log",
        "dt_bias",
        "l2norm",
        "gva",
        "states",
        "state_v_first",
    ),
    lowerings=(s.NARROW_STATE, s.gate("lower_bound"), s.L2NORM, s.GVA, s.STATE_V_FIRST),
    reference="fla_core.reference.oracle:delta",
    public=(("chunk_gdn2", "chunk"), ("fused_recurrent_gdn2", "recurrent")),
    laws=(*s.LAWS, "reduce"),
)
