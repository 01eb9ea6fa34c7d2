"""The built-in plugin ``reference``: plain PyTorch on any device, and the default on CPU.

It accepts the base form of every contract; core lowers everything else. Two implementations each:
the chunked form, and the token recurrence, which alone takes value-channel gates in the delta
family, where each value channel has a triangular system of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version

from fla_core.contracts import CONTRACTS
from fla_core.domain import FLOATS, Domain, Presence
from fla_core.plugins import Backend, Implementation, Probe, hookimpl

_MODULE = "fla_core.reference.implementations"
_DELTA = ("delta_rule", "gated_delta_rule", "kda", "gdn2")
_RECURRENCE_ONLY = ("gv", "beta_v")
_BASE = ("varlen", "initial_state", "final_state", "g", "gk", "gv", "beta_v", "states")


@hookimpl
def fla_backend() -> Backend:
    """Return the card; any device type is served, after every other backend."""
    return Backend(
        name="reference",
        targets=("*",),
        toolchain="torch",
        priority=1_000_000,
        description="plain PyTorch: the oracle, and the default on CPU",
    )


@hookimpl
def fla_implementations() -> Iterable[Implementation]:
    """Two implementations of each contract."""
    for contract in CONTRACTS.values():
        for variant in ("chunk", "recurrent"):
            yield _implementation(contract.name, variant)


def _implementation(name: str, variant: str) -> Implementation:
    contract = CONTRACTS[name]
    family = "delta" if name in _DELTA else "decay"
    features: dict[str, Presence] = {n: "optional" for n in _BASE if n in contract.features}
    if family == "delta":
        if "beta" in contract.features:
            features["beta"] = "required"
        if variant == "chunk":
            features.update({n: "forbidden" for n in _RECURRENCE_ONLY if n in features})
    entry = f"{_MODULE}:{family}_{variant}"
    return Implementation(
        contract=name,
        revision=contract.revision,
        variant=variant,
        forward=f"{entry}_forward",
        backward=f"{entry}_backward",
        domain=Domain(dtypes=FLOATS, features=features),
        forms=("chunk", "parallel") if variant == "chunk" else ("recurrent",),
        strided=True,
        claims=frozenset({"deterministic"}),
    )


@hookimpl
def fla_probe(device: str) -> Probe:
    """Runs wherever torch does."""
    return Probe(ok=True, versions={"torch": version("torch")})
