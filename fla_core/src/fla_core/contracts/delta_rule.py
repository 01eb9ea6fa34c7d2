"""The delta rule (DeltaNet): every write first erases what the key already holds."""

from __future__ import annotations

from fla_core.contract import Contract, TensorSpec
from fla_core.contracts import _shared as s

DELTA_RULE = Contract(
    name="delta_rule",
    revision=1,
    equation=(
        "e_t = beta_t (v_t - S_{t-1}^T k_t);  S_t = S_{t-1} + k_t e_t^T;  o_t = scale S_t^T q_t"
    ),
    source="Yang et al. 2024, Parallelizing Linear Transformers with the Delta Rule, eq. 3-4",
    inputs=(
        s.Q,
        s.K,
        s.values("H"),
        TensorSpec(
            "beta",
            "B T H",
            "writing strength in [0, 2]; ones when absent",
            "float",
            optional=True,
            alternative="B T H V",
        ),
        s.initial_state("H"),
    ),
    outputs=s.outputs("H"),
    flags=("final_state", "l2norm"),
    domain=s.domain("H", "beta", "beta_v", "l2norm"),
    lowerings=(s.NARROW_STATE, s.L2NORM, s.DEFAULT_BETA),
    reference="fla_core.reference.oracle:delta",
    public=(
        ("chunk_delta_rule", "chunk"),
        ("fused_chunk_delta_rule", "chunk"),
        ("fused_recurrent_delta_rule", "recurrent"),
    ),
    given=(("chunk_delta_rule", ("beta",)), ("fused_chunk_delta_rule", ("beta",))),
    laws=(*s.LAWS, "reduce"),
)
