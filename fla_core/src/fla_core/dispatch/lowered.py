"""Metadata of a lowered call: what an implementation sees once core has removed some features.

It says of dtypes and sizes what the functions in ``fla_core.lowerings`` do to tensors; a test runs
them and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fla_core.contract import Contract, Lowering
from fla_core.domain import Domain
from fla_core.verify import CallView

Sizes = Mapping[str, int | None]

# The argument that leaves a lowering in float32: in float64 if q is, ...
_AS_Q_ASKS = {
    "narrow_state": "initial_state",
    "normalize": "initial_state",
    "default_beta": "beta",
    "default_g": "g",
    "default_gk": "gk",
}
# ... or if something that goes into it is.
_AS_ITS_SOURCES = {"beta_sigmoid": "beta", "gate": "g", "g_gamma": "g"}


@dataclass(frozen=True, slots=True)
class Fit:
    """How a candidate would serve a call.

    Attributes:
        lowerings: applied around it, in order.
        view: the lowered call, which is what the implementation sees.
        raw: the call as it was made.
    """

    lowerings: tuple[Lowering, ...]
    view: CallView
    raw: CallView


def fit(contract: Contract, accepts: Domain, view: CallView) -> Fit:
    """Choose the lowerings for an implementation's domain and derive the call that it then sees."""
    lowerings, features = contract.lowerings_for(view.features, accepts)
    if not lowerings:
        return Fit((), view, view)
    dtypes, sizes = dict(view.dtypes), dict(view.axes)
    for lowering in lowerings:
        _retype(lowering, dtypes, view.dtype)
        _resize(lowering, sizes)
    consumed = {name for lowering in lowerings for name in lowering.consumes}
    gradients = view.gradients - consumed
    lowered = replace(view, features=features, axes=sizes, dtypes=dtypes, gradients=gradients)
    return Fit(lowerings, lowered, view)


def _retype(lowering: Lowering, dtypes: dict[str, str], q: str) -> None:
    sources = {dtypes.pop(name, "") for name in lowering.consumes}
    if name := _AS_Q_ASKS.get(lowering.name):
        dtypes[name] = _wide({q})
    if name := _AS_ITS_SOURCES.get(lowering.name):
        dtypes[name] = _wide(sources | {dtypes.get(name, "")})


def _wide(sources: set[str]) -> str:
    return "float64" if "float64" in sources else "float32"


def _resize(lowering: Lowering, sizes: dict[str, int | None]) -> None:
    if lowering.name == "gva" and "H" in sizes:
        sizes["H"] = sizes["HV"]  # grouped heads are repeated
    if lowering.name == "normalize" and (width := sizes.get("V")) is not None:
        sizes["V"] = width + 1  # the normaliser travels as one more value channel
