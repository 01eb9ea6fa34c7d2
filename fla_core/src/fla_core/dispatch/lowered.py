"""Metadata of a lowered call: what an implementation sees once core has removed some features.

What a lowering does to dtypes and sizes is stated by the contract; a test runs the functions of
``fla_core.lowerings`` and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fla_core.contract import Contract, Lowering
from fla_core.domain import Domain
from fla_core.verify import CallView

Sizes = Mapping[str, int | None]


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
        _retype(lowering, dtypes)
        _resize(lowering, sizes)
    consumed = {name for lowering in lowerings for name in lowering.consumes}
    gradients = view.gradients - consumed
    lowered = replace(
        view,
        features=features,
        axes=sizes,
        dtype=dtypes.get("q", view.dtype),
        dtypes=dtypes,
        gradients=gradients,
    )
    return Fit(lowerings, lowered, view)


def _retype(lowering: Lowering, dtypes: dict[str, str]) -> None:
    for argument, *sources in lowering.widens:
        if (argument, dtypes.get(argument)) in lowering.keeps:
            continue
        double = any(dtypes.get(source) == "float64" for source in sources)
        dtypes[argument] = "float64" if double else "float32"
    for name in lowering.consumes:
        dtypes.pop(name, None)


def _resize(lowering: Lowering, sizes: dict[str, int | None]) -> None:
    if lowering.resizes is None:
        return
    axis, source, added = lowering.resizes
    if axis in sizes and (size := sizes.get(source)) is not None:
        sizes[axis] = size + added
