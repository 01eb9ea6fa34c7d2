"""Linear attention without decay, optionally normalised."""

from __future__ import annotations

from fla_core.contract import Contract, Lowering, TensorSpec
from fla_core.contracts import _shared as s

LINEAR_ATTN = Contract(
    name="linear_attn",
    revision=1,
    equation=(
        "S_t = S_{t-1} + k_t v_t^T;  o_t = scale S_t^T q_t;  normalize: z_t = z_{t-1} + k_t,"
        "  o_t := o_t / (scale q_t.z_t + 1e-10)"
    ),
    source="Katharopoulos et al. 2020, Transformers are RNNs, eq. 10-12, 18-20",
    inputs=(
        s.Q,
        s.K,
        s.values("H"),
        s.initial_state("H"),
        TensorSpec(
            "initial_z",
            "N 1 H K",
            "normaliser before the first token; zeros when absent",
            dtype="float",
            optional=True,
        ),
    ),
    outputs=(
        *s.outputs("H"),
        TensorSpec(
            "final_z",
            "N 1 H K",
            "the normaliser after the last token",
            dtype="state",
            feature="normalize",
        ),
    ),
    flags=("final_state", "normalize", "reverse"),
    domain=s.domain("H", "initial_z", "normalize", "reverse"),
    lowerings=(
        s.NARROW_STATE,
        s.REVERSE,
        Lowering(
            name="normalize",
            features=("normalize", "initial_z"),
            function="fla_core.lowerings:normalize",
            lift="fla_core.lowerings:lift_normalize",
            lift_reads_outputs=True,
            adds=("final_state", "initial_state"),
            consumes=("initial_z",),
            widens=(("q", "q"), ("k", "q"), ("v", "q"), ("initial_state", "q")),
            keeps=(("q", "bfloat16"), ("k", "bfloat16"), ("v", "bfloat16")),
            resizes=("V", "V", 16),
        ),
    ),
    reference="fla_core.reference.oracle:decay",
    public=(
        ("chunk_linear_attn", "chunk"),
        ("fused_chunk_linear_attn", "chunk"),
        ("fused_recurrent_linear_attn", "recurrent"),
    ),
    laws=s.LAWS,
)
