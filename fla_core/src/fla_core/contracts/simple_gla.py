"""Linear attention with one decay a head: simple GLA, retention, lightning attention."""

from __future__ import annotations

from fla_core.contract import Contract, TensorSpec
from fla_core.contracts import _shared as s

SIMPLE_GLA = Contract(
    name="simple_gla",
    revision=1,
    equation="S_t = exp(g_t + g_gamma) S_{t-1} + k_t v_t^T;  o_t = scale S_t^T q_t",
    source="Sun et al. 2023, RetNet, eq. 3; Yang et al. 2024, GLA, section 4; Dao, Gu 2024, SSD",
    inputs=(
        s.Q,
        s.K,
        s.values("H"),
        TensorSpec("g", "B T H", "log decay of each token and head, <= 0", "float", optional=True),
        TensorSpec("g_gamma", "H", "log decay of each head, <= 0", "float", optional=True),
        s.initial_state("H"),
    ),
    outputs=s.outputs("H"),
    flags=("final_state", "reverse", "state_v_first"),
    domain=s.domain("H", "g", "g_gamma", "reverse", "state_v_first"),
    lowerings=(
        s.NARROW_STATE,
        s.lowering("g_gamma", adds=("g",), consumes=("g_gamma",), widens=("g", "g", "g_gamma")),
        s.REVERSE,
        s.DEFAULT_G,
        s.STATE_V_FIRST,
    ),
    reference="fla_core.reference.oracle:decay",
    public=(
        ("chunk_simple_gla", "chunk"),
        ("fused_chunk_simple_gla", "chunk"),
        ("fused_recurrent_simple_gla", "recurrent"),
        ("parallel_simple_gla", "parallel"),
        ("chunk_retention", "chunk"),
        ("fused_chunk_retention", "chunk"),
        ("fused_recurrent_retention", "recurrent"),
        ("parallel_retention", "parallel"),
        ("chunk_lightning_attn", "chunk"),
        ("fused_recurrent_lightning_attn", "recurrent"),
    ),
    brought=(
        ("chunk_retention", ("g_gamma",)),
        ("fused_chunk_retention", ("g_gamma",)),
        ("fused_recurrent_retention", ("g_gamma",)),
        ("parallel_retention", ("g_gamma",)),
        ("chunk_lightning_attn", ("g_gamma",)),
        ("fused_recurrent_lightning_attn", ("g_gamma",)),
    ),
    laws=(*s.LAWS, "reduce"),
)
