"""A kernel that dies as one does that reads where nothing is."""

from __future__ import annotations

from fla_core.domain import Domain
from fla_core.plugins import Backend, Implementation, Probe, hookimpl


@hookimpl
def fla_backend() -> Backend:
    return Backend("sample-hostile-signal", ("cpu",), "torch", description="dies by a signal")


@hookimpl
def fla_implementations() -> tuple[Implementation, ...]:
    return (
        Implementation(
            contract="linear_attn",
            revision=1,
            variant="chunk",
            forward="fla_sample_hostile_signal.kernels:forward",
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
