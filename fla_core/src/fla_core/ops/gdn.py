"""Short names of Gated DeltaNet."""

from fla_core.ops.gated_delta_rule import chunk_gdn, fused_gdn_gate, fused_recurrent_gdn

__all__ = ["chunk_gdn", "fused_gdn_gate", "fused_recurrent_gdn"]
