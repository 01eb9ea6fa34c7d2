"""Kimi Delta Attention: the delta rule on a state whose key channels decay separately."""

from __future__ import annotations

from fla_core.contract import Contract, TensorSpec
from fla_core.contracts import _shared as s

KDA = Contract(
    name="kda",
    revision=1,
    equation=(
        "S~_t = diag(exp(g_t)) S_{t-1};  e_t = beta_t (v_t - S~_t^T k_t);  S_t = S~_t + k_t e_t^T;"
        "  o_t = scale S_t^T q_t"
    ),
    source="Kimi Team 2025, Kimi Linear, eq. 1",
    inputs=(
        s.Q,
        s.K,
        s.values("HV"),
        s.CHANNEL_GATE,
        TensorSpec(
            "beta",
            "B T HV",
            "writing strength in [0, 2], or its logits under beta_sigmoid",
            "float",
            alternative="B T HV V",
        ),
        s.RATE,
        s.BIAS,
        s.initial_state("HV"),
    ),
    outputs=(*s.outputs("HV"), s.STATES),
    flags=(
        "final_state",
        "l2norm",
        "gate",
        "lower_bound",
        "beta_sigmoid",
        "neg_eigval",
        "states",
        "state_v_first",
    ),
    options=("lower_bound",),
    domain=s.domain(
        "HV",
        "beta_v",
        "gate",
        "lower_bound",
        "A_log",
        "dt_bias",
        "beta_sigmoid",
        "neg_eigval",
        "l2norm",
        "gva",
        "states",
        "state_v_first",
    ),
    lowerings=(
        s.NARROW_STATE,
        s.gate("lower_bound"),
        s.BETA_SIGMOID,
        s.L2NORM,
        s.GVA,
        s.STATE_V_FIRST,
    ),
    reference="fla_core.reference.oracle:delta",
    public=(("chunk_kda", "chunk"), ("fused_recurrent_kda", "recurrent")),
    laws=(*s.LAWS, "reduce"),
)
