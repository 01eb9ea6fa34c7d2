"""The two backends that pages suppose to be installed; neither can run here."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

from fla_core.domain import AxisRange, Domain, Presence
from fla_core.plugins import Backend, Implementation, Probe, hookimpl
from fla_core.plugins.discover import in_memory
from fla_core.plugins.record import PluginRecord

_BASE: dict[str, Presence] = dict.fromkeys(
    ("varlen", "initial_state", "final_state", "gva"), "optional"
)


def acme() -> PluginRecord:
    """Triton kernels for kda and gla with K of 64 or 128."""
    axes = {"K": AxisRange(choices=(64, 128))}
    return _plugin(
        Backend("acme", ("cuda",), "triton", priority=50),
        _implementation("kda", Domain(("bfloat16", "float16"), axes, features=_BASE)),
        _implementation("gla", Domain(("bfloat16",), axes, features={**_BASE, "gk": "required"})),
    )


def bolt() -> PluginRecord:
    """TileLang kernels for kda, which normalise q and k themselves."""
    axes = {"K": AxisRange(16, 256, multiple_of=16)}
    features: dict[str, Presence] = {**_BASE, "l2norm": "optional"}
    domain = Domain(("bfloat16",), axes, features=features)
    return _plugin(Backend("bolt", ("cuda",), "tilelang"), _implementation("kda", domain))


def _implementation(contract: str, domain: Domain) -> Implementation:
    features = {n: p for n, p in domain.features.items() if contract == "kda" or n != "gva"}
    return Implementation(
        contract=contract,
        revision=1,
        variant="chunk",
        forward="none:forward",
        backward="none:backward",
        domain=Domain(domain.dtypes, domain.axes, features=features),
    )


def _plugin(card: Backend, *implementations: Implementation) -> PluginRecord:
    module = ModuleType(f"plugin_{card.name}")

    @hookimpl
    def fla_backend() -> Backend:
        return card

    @hookimpl
    def fla_implementations() -> Iterable[Implementation]:
        return implementations

    @hookimpl
    def fla_probe(device: str) -> Probe:
        return Probe(False, "an example without hardware")

    for hook in (fla_backend, fla_implementations, fla_probe):
        setattr(module, hook.__name__, hook)
    return in_memory(card.name, module)
