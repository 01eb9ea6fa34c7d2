"""Bring a configuration into a declared domain, as little changed as possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fla_conformance.case import Case
from fla_conformance.reach import axis_range, cancels, declared, required, takes, wanting
from fla_conformance.sense import features_of
from fla_core.dispatch.candidates import Candidate
from fla_core.domain import AxisRange
from fla_core.normaliser import CHANNELS
from fla_core.plugins.api import Implementation
from fla_core.plugins.record import Origin, PluginRecord

DTYPES = ("bfloat16", "float16", "float32", "float64")
"""Dtypes of the grid, those that models use first."""


class Fitting:
    """The declared domain of one implementation; its verifier is left aside.

    A verifier that refuses what the declaration takes is a finding of the run, not a reason to
    leave the case out.
    """

    def __init__(self, implementation: Implementation) -> None:
        self._implementation = implementation

    def fit(self, case: Case) -> Case | None:
        """The case, or the nearest one that the declaration takes; None when there is none near.

        Features are never dropped: a case is about them. Required ones are added, sizes move to the
        nearest that are allowed, and a dtype that is not served becomes the first that is.
        """
        domain, contract = self._implementation.domain, case.definition
        features = case.features | required(contract, domain)
        if not takes(contract, domain, features_of(case.but(features=features))):
            return None
        dtypes = [case.dtype, *DTYPES]
        dtype = next((name for name in dtypes if name in domain.dtypes), None)
        if dtype is None:
            return None
        wanted = wanting(case.but(features=features, dtype=dtype), self._implementation)
        near = (one for one in self._near(wanted) if not cancels(one) and self._accepts(one))
        return next(near, None)

    def _accepts(self, case: Case) -> bool:
        bare = replace(self._implementation, verifier=None)
        record = PluginRecord("declaration", Origin("declaration"), "")
        return declared(case, Candidate(case.definition, record, bare)).ok

    def _near(self, case: Case) -> Iterator[Case]:
        """The case itself, then ever further ones."""
        yield case
        sizes = dict(case.sizes)
        for axis in ("B", "T", "H", "HV", "K", "V"):
            if axis in sizes and not (case.lengths is not None and axis in "BT"):
                sizes[axis] = nearest(self._range(case, axis), sizes[axis])
        moved = case.but(sizes=sizes)
        if case.lengths is not None:
            moved = moved.but(lengths=self._lengths(case))
            moved = moved.but(sizes={**sizes, "T": sum(moved.lengths or ())})
        yield moved
        yield moved.but(sizes={**moved.sizes, "HV": moved.sizes["H"]})
        yield moved.but(sizes={**moved.sizes, "H": 1, "HV": moved.sizes["HV"]})
        for axis, other in (("V", "K"), ("K", "V")):
            yield moved.but(sizes={**moved.sizes, axis: moved.sizes[other]})
        if "normalize" in case.features and moved.sizes["V"] > CHANNELS:
            # The normaliser travels as further value channels where core lowers it.
            yield moved.but(sizes={**moved.sizes, "V": moved.sizes["V"] - CHANNELS})
        smallest = {a: nearest(self._range(case, a), 1) for a in ("K", "V")}
        yield moved.but(sizes={**moved.sizes, **smallest})

    def _range(self, case: Case, axis: str) -> AxisRange:
        return axis_range(case.definition, self._implementation.domain, axis)

    def _lengths(self, case: Case) -> tuple[int, ...]:
        """Lengths whose number and sum are allowed; the last one gives way."""
        lengths = list(case.lengths or ())
        count = nearest(self._range(case, "N"), len(lengths))
        lengths = (lengths + [1] * count)[:count]
        if not lengths:
            return ()
        total = nearest(self._range(case, "T"), sum(lengths))
        before = sum(lengths[:-1])
        lengths[-1] = max(total - before, 0)
        return tuple(lengths)


def nearest(allowed: AxisRange, wanted: int) -> int:
    """The smallest allowed size that is not below the wanted one, else the largest."""
    if wanted in allowed:
        return wanted
    highest = max(2 * wanted, allowed.low + allowed.multiple_of, *allowed.choices)
    sizes = list(allowed.sizes(highest))
    above = [size for size in sizes if size >= wanted]
    return min(above) if above else max(sizes, default=wanted)
