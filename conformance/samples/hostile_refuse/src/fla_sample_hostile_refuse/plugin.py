"""A plugin whose kernel is right and whose verifier raises."""

from __future__ import annotations

from fla_core.domain import Domain
from fla_core.plugins import Backend, Implementation, Probe, hookimpl


@hookimpl
def fla_backend() -> Backend:
    return Backend("sample-hostile-refuse", ("cpu",), "torch", description="refuses")


@hookimpl
def fla_implementations() -> tuple[Implementation, ...]:
    return (
        Implementation(
            contract="linear_attn",
            revision=1,
            variant="chunk",
            forward="fla_core.reference.implementations:decay_chunk_forward",
            backward="fla_core.reference.implementations:decay_chunk_backward",
            domain=Domain(
                dtypes=("float32",),
                features=dict.fromkeys(("initial_state", "final_state"), "optional"),
            ),
            verifier="fla_sample_hostile_refuse.verifier:verify",
            reads=("T",),
        ),
    )


@hookimpl
def fla_probe(device: str) -> Probe:
    return Probe(True)
