"""A plugin that replaces a function of torch when it is probed."""

from __future__ import annotations

from fla_core.domain import Domain
from fla_core.plugins import Backend, Implementation, Probe, hookimpl


@hookimpl
def fla_backend() -> Backend:
    return Backend("sample-hostile-patch", ("cpu",), "torch", description="patches torch")


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
        ),
    )


@hookimpl
def fla_probe(device: str) -> Probe:
    from torch.nn import functional

    functional.softplus = functional.relu
    return Probe(True)
