"""Random cases inside a declared domain, built to satisfy it rather than filtered.

:func:`build` makes every decision through a function ``pick``, which chooses from a list that holds
only choices under which the rest can be completed. A seeded generator picks for samples, Hypothesis
for its lane; the first choice of each list is the simplest, so that failing cases shrink.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import islice, pairwise, product
from typing import Any, TypeVar

from hypothesis import strategies as st

from fla_conformance.case import GATES, REGIMES, Case, Direction
from fla_conformance.draw import DELTA_FAMILY
from fla_conformance.reach import (
    axis_range,
    cancels,
    fits,
    forms_of,
    optional,
    required,
    takes,
    vanishes,
    wanting,
)
from fla_conformance.sense import NEEDS, dtypes_of, features_of, may_be_safe
from fla_core.contracts import CONTRACTS
from fla_core.domain import AxisRange
from fla_core.normaliser import CHANNELS
from fla_core.plugins.api import Implementation

Item = TypeVar("Item")
Pick = Callable[[Sequence[Any]], Any]
"""Chooses one of a list that is never empty."""

WIDTHS = (1, 3, 8, 16, 17, 32, 60, 64)
TOKENS = (1, 0, 2, 5, 15, 16, 17, 33, 63, 64, 65, 70)
HEADS, GROUPS = (1, 2, 3), (1, 2, 4)
BATCHES, SEQUENCES = (1, 0, 2, 3), (1, 2, 3, 5)
CHUNKS = (None, 16, 32, 64)
GATE_DTYPES = ("float32", "bfloat16", "float16")
SEEDS = 2**16
LOWER_BOUND = -5.0

_OWN = 4
"""How many of a range's own sizes are tried."""


class Space:
    """The cases of one implementation and direction.

    Raises:
        ValueError: nothing this small lies in the declared domain.
    """

    def __init__(self, implementation: Implementation, direction: Direction) -> None:
        self.implementation, self.direction = implementation, direction
        self.contract = CONTRACTS[implementation.contract]
        self.domain = implementation.domain
        self._known: dict[Any, list[Any]] = {}

    @cached_property
    def dtypes(self) -> list[str]:
        """Dtypes of q that are served, the plainest first."""
        order = ("float32", "bfloat16", "float16", "float64")
        return [name for name in order if name in self.domain.dtypes]

    def _optional(self, dtype: str) -> list[str]:
        dropped = {"states"} if self.direction == "bwd" else set()
        served = optional(self.contract, self.domain, dtype)
        found = [name for name in served if name not in dropped]
        # Shrinking drops early choices first, so what needs others goes before them.
        return sorted(found, key=lambda name: name not in NEEDS)

    def build(self, pick: Pick) -> Case:
        """Decide everything and return the case."""
        form = pick(forms_of(self.contract.name))
        bare = Case(
            contract=self.contract.name,
            direction=self.direction,
            dtype=pick(self.dtypes),
            form=form,
            sizes={"B": 1, "T": 1, "H": 1, "HV": 1, "K": 1, "V": 1},
        )
        case = self._with_features(bare, pick)
        case = self._with_sizes(case, pick)
        case = case.but(regime=pick(self._regimes))
        case = case.but(
            chunk_size=pick(CHUNKS),
            recompute=pick((True, False)),
            safe_gate=pick((False, True)) if may_be_safe(case) else False,
            gate_dtype=pick(GATE_DTYPES) if GATES & dtypes_of(case).keys() else GATE_DTYPES[0],
            seed=pick(range(SEEDS)),
        )
        return case.but(features=features_of(case))

    @property
    def _regimes(self) -> list[str]:
        # Without keys a call says little of anything else, and loud ones need a scale.
        left_out = {"idle", "loud"}
        if self.contract.name not in DELTA_FAMILY:
            left_out.add("parallel_keys")
        return [name for name in REGIMES if name not in left_out]

    def _with_features(self, case: Case, pick: Pick) -> Case:
        optionals = self._once(("optional", case.dtype), lambda: self._optional(case.dtype))
        chosen = {name for name in optionals if pick((False, True))}
        chosen |= required(self.contract, self.domain)
        features = self._closed(chosen, case.form)
        packed = "varlen" in features
        options = {"lower_bound": LOWER_BOUND} if "lower_bound" in features else None
        complete = case.but(
            features=frozenset(features - {"varlen", "gva"}),
            lengths=(1,) if packed else None,
            options=options,
            sizes={**case.sizes, "HV": 2} if "gva" in features else case.sizes,
        )
        return wanting(complete, self.implementation)

    def _closed(self, chosen: set[str], form: str) -> set[str]:
        """Add what features need; drop those whose needs are not served."""
        kept = set()
        for name in sorted(chosen):
            wanted = self._with_needs({name})
            if takes(self.contract, self.domain, frozenset(wanted | self._always(form))):
                kept |= wanted
        return kept | self._always(form)

    def _with_needs(self, names: set[str]) -> set[str]:
        found = set(names)
        while True:
            more = {NEEDS[name] for name in found if NEEDS.get(name) in self.contract.features}
            if "gate" in found and "lower_bound" not in found:
                more.add("A_log")
            if more <= found:
                return found
            found |= more

    def _always(self, form: str) -> set[str]:
        needed = set(required(self.contract, self.domain))
        if self.contract.name == "gated_delta_rule" and form == "chunk":
            needed |= {"g", "beta"}
        return self._with_needs(needed)

    def _with_sizes(self, case: Case, pick: Pick) -> Case:
        grouped = case.sizes["HV"] != case.sizes["H"]
        # Of all features only these bear upon sizes.
        normalised = case.features & {"normalize", "l2norm", "initial_z"}
        key = (case.lengths is None, grouped, normalised)
        heads = self._once(("heads", *key), lambda: self._heads(case, grouped))
        for axis in ("K", "V", "H", "HV"):  # one by one, so that each of them shrinks
            size = pick(sorted({sizes[axis] for sizes in heads}))
            heads = [sizes for sizes in heads if sizes[axis] == size]
        case = case.but(sizes={**case.sizes, **heads[0]})
        rows = self._once(("rows", *key, *case.sizes.items()), lambda: self._rows(case))
        rows = pick(rows)
        if case.lengths is None:
            return case.but(sizes={**case.sizes, **rows})
        lengths = _parts(rows["T"], rows["N"], pick)
        if vanishes(case.but(lengths=lengths)):  # and none of the parts is longer than the whole
            lengths = _without_ones(lengths)
        return case.but(sizes={**case.sizes, "B": 1, "T": rows["T"]}, lengths=lengths)

    def _once(self, key: Any, make: Callable[[], list[Any]]) -> list[Any]:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def _heads(self, case: Case, grouped: bool) -> list[dict[str, int]]:
        """Head counts and widths under which some batch and length are declared."""
        found = []
        short = case.but(lengths=None)
        widths = [k for k in self._few("K") if not vanishes(short.but(sizes={"K": k, "T": 2}))]
        values = self._few("V")
        if "normalize" in case.features:
            # The normaliser travels as further value channels where core lowers it.
            values = sorted({n for v in values for n in (v - CHANNELS, v) if n > 0})
        for k, v, h in product(widths, values, self._head_counts()):
            for group in GROUPS[1:] if grouped else GROUPS[:1]:
                sizes = {"H": h, "HV": h * group, "K": k, "V": v}
                if self._possible(case, sizes) and self._rows(
                    case.but(sizes={**case.sizes, **sizes}), first=True
                ):
                    found.append(sizes)
        if not found:
            raise ValueError(
                f"{self.contract.name}#{self.implementation.variant}: no small sizes lie in the"
                f" declared domain with {', '.join(sorted(case.features)) or 'no features'}"
            )
        return found

    def _possible(self, case: Case, sizes: dict[str, int]) -> bool:
        """A quick look at what no batch or length can mend; lowerings may change H and V."""
        lowered = {"H", "HV"} if sizes["H"] != sizes["HV"] else set()
        lowered |= {"V"} if "normalize" in case.features else set()
        return all(
            relation.holds(sizes)
            for relation in self.domain.relations
            if set(relation.axes) <= set(sizes) - lowered
        ) and all(size in self._range(axis) for axis, size in sizes.items() if axis not in lowered)

    def _head_counts(self) -> list[int]:
        counts = {*self._few("H", HEADS)}
        if "HV" in self.contract.domain.axes:
            counts.update(n for n in self._few("HV", HEADS) if n in self._range("H"))
        return sorted(counts)

    def _rows(self, case: Case, first: bool = False) -> list[dict[str, int]]:
        """Batch sizes or numbers of sequences, with lengths."""
        found = []
        packed = case.lengths is not None
        for tokens in self._few("T", TOKENS):
            for count in self._few("N", SEQUENCES) if packed else self._few("B", BATCHES):
                near = case.but(sizes={**case.sizes, "B": 1 if packed else count, "T": tokens})
                if packed:
                    near = near.but(lengths=(tokens, *[0] * (count - 1)))
                if not cancels(near) and fits(near, self.implementation).ok:
                    found.append({"T": tokens, "N" if packed else "B": count})
                    if first:
                        return found
        return found

    def _few(self, axis: str, preferred: Sequence[int] = WIDTHS) -> list[int]:
        """Sizes to try: telling ones, and the smallest that the range has itself."""
        allowed = self._range(axis)
        found = [size for size in preferred if size in allowed]
        if axis in self.domain.axes or not found:
            high = max(256, allowed.low, *allowed.choices) + _OWN * allowed.multiple_of
            found += [n for n in islice(allowed.sizes(high), _OWN) if n not in found]
        return found

    def _range(self, axis: str) -> AxisRange:
        return axis_range(self.contract, self.domain, axis)


def _parts(total: int, count: int, pick: Pick) -> tuple[int, ...]:
    """``count`` lengths, zeros among them, that sum to ``total``."""
    cuts = sorted(pick(range(total + 1)) for _ in range(count - 1))
    return tuple(end - begin for begin, end in pairwise([0, *cuts, total]))


def _without_ones(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """As many lengths with the same sum, none of them one: such a token joins the longest."""
    found = list(lengths)
    while 1 in found:
        found[found.index(1)] = 0
        found[found.index(max(found))] += 1
    return tuple(found)


def sample(
    implementation: Implementation, direction: Direction, count: int, seed: int
) -> list[Case]:
    """Seeded cases of a declared domain, the same in every process.

    Raises:
        ValueError: nothing this small lies in it.
    """
    space, draw = Space(implementation, direction), random.Random(seed)
    return [space.build(draw.choice) for _ in range(count)]


def cases(implementation: Implementation, direction: Direction) -> st.SearchStrategy[Case]:
    """Hypothesis's cases of a declared domain.

    Raises:
        ValueError: nothing this small lies in it.
    """
    space = Space(implementation, direction)

    @st.composite
    def built(draw: st.DrawFn) -> Case:
        return space.build(lambda items: draw(st.sampled_from(items)))

    return built()
