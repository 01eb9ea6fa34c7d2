"""Calls at the ends of declared ranges, and one for every size within them."""

from __future__ import annotations

from collections.abc import Iterator

from fla_conformance.case import Case, Direction
from fla_conformance.fitting import Fitting
from fla_conformance.reach import axis_range, optional
from fla_conformance.violations import plainest
from fla_core.contract import Contract
from fla_core.domain import AxisRange
from fla_core.plugins.api import Implementation

LARGEST = {"K": 512, "V": 512, "H": 64, "HV": 64, "B": 64}
"""Sizes up to which a range is looked at; a call of them is a matter of seconds on a CPU."""

_COMMON = frozenset({"g", "gk", "beta", "initial_state", "final_state"})
"""What ordinary calls have, where it is served."""

TOKENS = 300
"""As many lengths are swept: some chunks, and every rest of one."""


def edges(
    contract: Contract, implementation: Implementation, direction: Direction
) -> Iterator[tuple[str, Case]]:
    """The smallest and largest size of each range that is declared, and each of its choices."""
    declared = implementation.domain
    common = _COMMON & frozenset(optional(contract, declared))
    for axis, highest in LARGEST.items():
        for size in _ends(declared.axes[axis], highest) if axis in declared.axes else ():
            if case := _sized(contract, implementation, direction, axis, size, common):
                yield f"{axis}={size}", case


def sweep(
    contract: Contract, implementation: Implementation, direction: Direction
) -> Iterator[Case]:
    """A call for every size of every axis, the others being plain, in every dtype."""
    for axis, highest in {**LARGEST, "T": TOKENS}.items():
        if axis in contract.domain.axes or axis in "BTHKV":
            for size in axis_range(contract, implementation.domain, axis).sizes(highest):
                if case := _sized(contract, implementation, direction, axis, size):
                    for dtype in implementation.domain.dtypes:
                        yield case.but(dtype=dtype)


def _ends(allowed: AxisRange, highest: int) -> list[int]:
    if allowed.choices:
        return [size for size in allowed.choices if size <= highest]
    sizes = [size for size in allowed.sizes(highest) if size]
    return sorted({*sizes[:1], *sizes[-1:]}) if allowed.high is not None else sizes[:1]


def _sized(
    contract: Contract,
    implementation: Implementation,
    direction: Direction,
    axis: str,
    size: int,
    features: frozenset[str] = frozenset(),
) -> Case | None:
    """The plainest declared call with this size and these features, if there is one."""
    base = plainest(contract, implementation)
    if base is None or (direction == "bwd" and implementation.backward is None):
        return None
    base = base.but(features=base.features | features)
    sizes = {**base.sizes, axis: size}
    if axis == "H":
        sizes["HV"] = max(size, sizes["HV"]) if size and sizes["HV"] % size == 0 else size
    if axis in "BT" and base.lengths is not None:
        return None
    case = Fitting(implementation).fit(base.but(direction=direction, sizes=sizes))
    return case if case is not None and case.sizes[axis] == size else None
