"""Gated DeltaNet: the delta rule on a state that decays, one gate a value head."""

from __future__ import annotations

from fla_core.contract import Contract, TensorSpec
from fla_core.contracts import _shared as s

GATED_DELTA_RULE = Contract(
    name="gated_delta_rule",
    revision=1,
    equation=(
        "S~_t = diag(exp(gk_t)) exp(g_t) S_{t-1} diag(exp(gv_t));  e_t = beta_t (v_t - S~_t^T k_t);"
        "  S_t = S~_t + k_t e_t^T;  o_t = scale S_t^T q_t"
    ),
    source="Yang, Kautz, Hatamizadeh 2025, Gated Delta Networks, eq. 10",
    inputs=(
        s.Q,
        s.K,
        s.values("HV"),
        TensorSpec(
            "g",
            "B T HV",
            "log decay, <= 0; under gate, its logits: -exp(A_log) softplus(g + dt_bias)",
            "float",
            optional=True,
        ),
        TensorSpec("gk", "B T HV K", "log decay of key channels, <= 0", "float", optional=True),
        TensorSpec("gv", "B T HV V", "log decay of value channels, <= 0", "float", optional=True),
        TensorSpec(
            "beta",
            "B T HV",
            "writing strength in [0, 2], or its logits under beta_sigmoid; ones when absent",
            "float",
            optional=True,
            alternative="B T HV V",
        ),
        TensorSpec("A_log", "HV", "log of the gate's rate", "float", optional=True),
        TensorSpec("dt_bias", "HV", "added to the gate's logits", "float", optional=True),
        s.initial_state("HV"),
    ),
    outputs=s.outputs("HV"),
    flags=("final_state", "l2norm", "gate", "beta_sigmoid", "neg_eigval", "state_v_first"),
    domain=s.domain(
        "HV",
        "g",
        "gk",
        "gv",
        "beta",
        "beta_v",
        "gate",
        "A_log",
        "dt_bias",
        "beta_sigmoid",
        "neg_eigval",
        "l2norm",
        "gva",
        "state_v_first",
    ),
    lowerings=(
        s.NARROW_STATE,
        s.gate(),
        s.BETA_SIGMOID,
        s.L2NORM,
        s.DEFAULT_BETA,
        s.DEFAULT_G,
        s.GVA,
        s.STATE_V_FIRST,
    ),
    reference="fla_core.reference.oracle:delta",
    public=(
        ("chunk_gated_delta_rule", "chunk"),
        ("chunk_gdn", "chunk"),
        ("fused_recurrent_gated_delta_rule", "recurrent"),
        ("fused_recurrent_gdn", "recurrent"),
    ),
    aliases=(
        ("chunk_gdn", "chunk_gated_delta_rule"),
        ("fused_recurrent_gdn", "fused_recurrent_gated_delta_rule"),
    ),
    given=(("chunk_gated_delta_rule", ("g", "beta")), ("chunk_gdn", ("g", "beta"))),
    laws=(*s.LAWS, "reduce"),
)
