"""What an operator, or one implementation of it, accepts, in a small closed vocabulary.

A domain is data: the same object refuses a call, is rendered into the documentation, spans the
conformance grid and builds random cases. It therefore holds no functions; what it cannot express
belongs into an implementation's verifier, which may only narrow it further.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fla_core.verify import OK, CallView, Reason, Verdict

Presence = Literal["required", "optional", "forbidden"]

AXES = ("B", "T", "H", "HV", "K", "V", "N")
"""Axis letters, in the order in which sizes are handed around."""

FLOATS = ("float16", "bfloat16", "float32", "float64")
SHORT_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}


@dataclass(frozen=True, slots=True)
class AxisRange:
    """Sizes one axis may have: ``choices``, or ``low..high`` in steps of ``multiple_of``."""

    low: int = 1
    high: int | None = None
    multiple_of: int = 1
    choices: tuple[int, ...] = ()

    def __contains__(self, size: int) -> bool:
        if self.choices:
            return size in self.choices
        below = self.high is None or size <= self.high
        return self.low <= size and below and size % self.multiple_of == 0

    def __str__(self) -> str:
        if self.choices:
            return " | ".join(map(str, self.choices))
        text = f">= {self.low}" if self.high is None else f"{self.low}..{self.high}"
        return text if self.multiple_of == 1 else f"{text}, multiple of {self.multiple_of}"

    def within(self, outer: AxisRange) -> bool:
        """True when every size of this range certainly lies in ``outer``."""
        if self.choices:
            return all(size in outer for size in self.choices)
        if outer.choices:
            return self.high is not None and all(n in outer for n in self.sizes(self.high))
        bounded = outer.high is None or (self.high is not None and self.high <= outer.high)
        return outer.low <= self.low and bounded and self.multiple_of % outer.multiple_of == 0

    def sizes(self, high: int) -> Iterator[int]:
        """Every size of the range up to ``high``, ascending."""
        if self.choices:
            return (n for n in sorted(self.choices) if n <= high)
        last = high if self.high is None else min(high, self.high)
        first = -(-self.low // self.multiple_of) * self.multiple_of
        return iter(range(first, last + 1, self.multiple_of))


@dataclass(frozen=True, slots=True)
class Relation:
    """A condition between axes.

    ``divides``: the first axis divides the second. ``equal``: both are the same.
    ``at_most``: the first is not larger than the second. ``product_at_most``: their product is
    not larger than ``limit``.
    """

    kind: Literal["divides", "equal", "at_most", "product_at_most"]
    axes: tuple[str, ...]
    limit: int = 0

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """True when the sizes satisfy the relation."""
        values = [sizes[axis] for axis in self.axes]
        if self.kind == "product_at_most":
            product = 1
            for value in values:
                product *= value
            return product <= self.limit
        first, second = values
        if self.kind == "divides":
            return first > 0 and second % first == 0
        return first == second if self.kind == "equal" else first <= second

    def __str__(self) -> str:
        if self.kind == "product_at_most":
            return f"{' * '.join(self.axes)} <= {self.limit}"
        verb = {"divides": "divides", "equal": "=", "at_most": "<="}[self.kind]
        return f"{self.axes[0]} {verb} {self.axes[1]}"


@dataclass(frozen=True, slots=True)
class Domain:
    """The set of calls an operator or implementation accepts.

    Attributes:
        dtypes: dtype names of ``q`` (which ``k`` and ``v`` share).
        axes: range of each constrained axis; an axis not named is unconstrained.
        relations: conditions between axes.
        features: presence of each feature; a feature not named is forbidden.
    """

    dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32")
    axes: Mapping[str, AxisRange] = field(default_factory=dict)
    relations: tuple[Relation, ...] = ()
    features: Mapping[str, Presence] = field(default_factory=dict)

    def presence(self, feature: str) -> Presence:
        """What the domain says of a feature."""
        return self.features.get(feature, "forbidden")

    def constrained_axes(self) -> frozenset[str]:
        """Axes whose size can change the answer of :meth:`check`."""
        related = {axis for relation in self.relations for axis in relation.axes}
        return frozenset(self.axes) | related

    def check(self, view: CallView) -> Verdict:
        """Return ``OK`` or the first reason why the call lies outside."""
        refusal = self.check_dtype(view.dtype)
        if refusal is None:
            refusal = self._check_features(view.features)
        if refusal is None:
            refusal = self._check_axes(view.axes)
        return OK if refusal is None else refusal

    def check_dtype(self, dtype: str) -> Verdict | None:
        """Return a refusal when ``q`` may not have this dtype."""
        if dtype in self.dtypes:
            return None
        return Verdict(Reason.DTYPE, "q", " | ".join(self.dtypes), dtype)

    def _check_features(self, active: frozenset[str]) -> Verdict | None:
        for feature in sorted(active):
            if self.presence(feature) == "forbidden":
                return Verdict(Reason.FEATURE, feature, "absent", "present")
        for feature, presence in self.features.items():
            if presence == "required" and feature not in active:
                return Verdict(Reason.FEATURE, feature, "present", "absent")
        return None

    def _check_axes(self, sizes: Mapping[str, int | None]) -> Verdict | None:
        known = {axis: size for axis, size in sizes.items() if size is not None}
        for axis, allowed in self.axes.items():
            size = sizes.get(axis)
            if size is None:
                return Verdict(Reason.AXIS, axis, str(allowed), "unknown while tracing")
            if size not in allowed:
                return Verdict(Reason.AXIS, axis, str(allowed), str(size))
        for relation in self.relations:
            if not all(axis in known for axis in relation.axes):
                return Verdict(Reason.AXIS, str(relation), "known sizes", "unknown while tracing")
            if not relation.holds(known):
                got = ", ".join(f"{axis}={known[axis]}" for axis in relation.axes)
                return Verdict(Reason.AXIS, relation.axes[0], str(relation), got)
        return None

    def outside_of(self, outer: Domain) -> str:
        """Name the first way in which this domain exceeds ``outer``; ``""`` when it is a subset."""
        if extra := sorted(set(self.dtypes) - set(outer.dtypes)):
            return f"dtype {extra[0]} is not in the contract"
        for axis, allowed in self.axes.items():
            if axis in outer.axes and not allowed.within(outer.axes[axis]):
                return f"axis {axis} {allowed} exceeds the contract's {outer.axes[axis]}"
        for feature, presence in self.features.items():
            if feature not in outer.features:
                return f"feature {feature!r} is not in the contract"
            if presence != "forbidden" and outer.presence(feature) == "forbidden":
                return f"feature {feature!r} is forbidden by the contract"
        return ""
