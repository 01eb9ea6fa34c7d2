"""A kernel that ends the process without a word."""

from __future__ import annotations

from fla_core.domain import Domain
from fla_core.plugins import Backend, Implementation, Probe, hookimpl


@hookimpl
def fla_backend() -> Backend:
    return Backend("sample-hostile-exit", ("cpu",), "torch", description="leaves")


@hookimpl
def fla_implementations() -> tuple[Implementation, ...]:
    return (
        Implementation(
            contract="linear_attn",
            revision=1,
            variant="chunk",
            forward="fla_sample_hostile_exit.kernels:forward",
            backward="fla_core.reference.implementations:decay_chunk_backward",
            domain=Domain(
                dtypes=("float32",),
                features=dict.fromkeys(("initial_state", "final_state"), "optional"),
            ),
        ),
    )


@hookimpl
def fla_probe(device: str) -> Probe:
    return Probe(True)
