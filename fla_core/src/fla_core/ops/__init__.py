"""Public operators: names, parameter order and defaults of flash-linear-attention 0.6.0."""

from fla_core.ops.delta_rule import (
    chunk_delta_rule,
    fused_chunk_delta_rule,
    fused_recurrent_delta_rule,
)
from fla_core.ops.gated_delta_rule import (
    chunk_gated_delta_rule,
    chunk_gdn,
    fused_recurrent_gated_delta_rule,
    fused_recurrent_gdn,
)
from fla_core.ops.gdn2 import chunk_gdn2, fused_recurrent_gdn2
from fla_core.ops.gla import chunk_gla, fused_chunk_gla, fused_recurrent_gla
from fla_core.ops.kda import chunk_kda, fused_recurrent_kda
from fla_core.ops.lightning_attn import chunk_lightning_attn, fused_recurrent_lightning_attn
from fla_core.ops.linear_attn import (
    chunk_linear_attn,
    fused_chunk_linear_attn,
    fused_recurrent_linear_attn,
)
from fla_core.ops.retention import (
    chunk_retention,
    fused_chunk_retention,
    fused_recurrent_retention,
    parallel_retention,
)
from fla_core.ops.simple_gla import (
    chunk_simple_gla,
    fused_chunk_simple_gla,
    fused_recurrent_simple_gla,
    parallel_simple_gla,
)

__all__ = [
    "chunk_delta_rule",
    "chunk_gated_delta_rule",
    "chunk_gdn",
    "chunk_gdn2",
    "chunk_gla",
    "chunk_kda",
    "chunk_lightning_attn",
    "chunk_linear_attn",
    "chunk_retention",
    "chunk_simple_gla",
    "fused_chunk_delta_rule",
    "fused_chunk_gla",
    "fused_chunk_linear_attn",
    "fused_chunk_retention",
    "fused_chunk_simple_gla",
    "fused_recurrent_delta_rule",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_gdn",
    "fused_recurrent_gdn2",
    "fused_recurrent_gla",
    "fused_recurrent_kda",
    "fused_recurrent_lightning_attn",
    "fused_recurrent_linear_attn",
    "fused_recurrent_retention",
    "fused_recurrent_simple_gla",
    "parallel_retention",
    "parallel_simple_gla",
]
