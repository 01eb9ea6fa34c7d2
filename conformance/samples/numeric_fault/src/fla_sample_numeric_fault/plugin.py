"""Simple GLA with one wrong line in its kernel."""

from __future__ import annotations

from fla_core.domain import Domain
from fla_core.plugins import Backend, Implementation, Probe, hookimpl


@hookimpl
def fla_backend() -> Backend:
    return Backend("sample-numeric-fault", ("cpu",), "torch", description="decays its own token")


@hookimpl
def fla_implementations() -> tuple[Implementation, ...]:
    features = ("varlen", "initial_state", "final_state", "g")
    return (
        Implementation(
            contract="simple_gla",
            revision=1,
            variant="tokens",
            forward="fla_sample_numeric_fault.kernels:forward",
            backward="fla_sample_numeric_fault.kernels:backward",
            domain=Domain(
                dtypes=("bfloat16", "float16", "float32"),
                features=dict.fromkeys(features, "optional"),
            ),
            forms=("recurrent",),
            strided=True,
        ),
    )


@hookimpl
def fla_probe(device: str) -> Probe:
    return Probe(True)
