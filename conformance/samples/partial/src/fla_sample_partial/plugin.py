"""Linear attention forward, in float32, for heads of 16, 32 or 64."""

from __future__ import annotations

from fla_core.domain import AxisRange, Domain
from fla_core.plugins import Backend, Implementation, Probe, hookimpl


@hookimpl
def fla_backend() -> Backend:
    return Backend("sample-partial", ("cpu",), "torch", description="little, and honest")


@hookimpl
def fla_implementations() -> tuple[Implementation, ...]:
    return (
        Implementation(
            contract="linear_attn",
            revision=1,
            variant="chunk",
            forward="fla_core.reference.implementations:decay_chunk_forward",
            backward=None,
            domain=Domain(
                dtypes=("float32",),
                axes={
                    "B": AxisRange(1),
                    "T": AxisRange(1, multiple_of=16),
                    "K": AxisRange(choices=(16, 32, 64)),
                    "V": AxisRange(choices=(16, 32, 64)),
                },
                features=dict.fromkeys(("initial_state", "final_state"), "optional"),
            ),
        ),
    )


@hookimpl
def fla_probe(device: str) -> Probe:
    return Probe(True)
