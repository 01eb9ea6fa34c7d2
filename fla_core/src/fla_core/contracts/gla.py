"""Gated linear attention: a decay for each key channel, and optionally each value channel."""

from __future__ import annotations

from fla_core.contract import Contract, TensorSpec
from fla_core.contracts import _shared as s

GLA = Contract(
    name="gla",
    revision=1,
    equation=("S_t = diag(exp(gk_t)) S_{t-1} diag(exp(gv_t)) + k_t v_t^T;  o_t = scale S_t^T q_t"),
    source="Yang et al. 2024, Gated Linear Attention Transformers, eq. 3",
    inputs=(
        s.Q,
        s.K,
        s.values("H"),
        TensorSpec("gk", "B T H K", "log decay of key channels, <= 0", "float", optional=True),
        TensorSpec("gv", "B T H V", "log decay of value channels, <= 0", "float", optional=True),
        s.initial_state("H"),
    ),
    outputs=s.outputs("H"),
    flags=("final_state", "reverse", "state_v_first"),
    domain=s.domain("H", "gk", "gv", "reverse", "state_v_first"),
    lowerings=(
        s.NARROW_STATE,
        s.REVERSE,
        s.lowering("default_gk", absent=True, widens=("gk", "q")),
        s.STATE_V_FIRST,
    ),
    reference="fla_core.reference.oracle:decay",
    public=(
        ("chunk_gla", "chunk"),
        ("fused_chunk_gla", "chunk"),
        ("fused_recurrent_gla", "recurrent"),
    ),
    given=(("chunk_gla", ("gk",)), ("fused_chunk_gla", ("gk",))),
    laws=(*s.LAWS, "reduce"),
)
