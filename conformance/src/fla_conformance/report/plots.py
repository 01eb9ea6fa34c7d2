"""Margins as dots on a logarithmic axis: where every checked case lies below its limit."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fla_conformance.result import Outcome, Result
from fla_core.domain import SHORT_DTYPES

LOW, HIGH = 1e-3, 10.0
"""Ends of the axis in error over limit; what lies outside is drawn at the end."""

LEFT, WIDTH, RIGHT = 84, 868, 76
ROW, TOP = 30, 22
_BIN = 4.0
_LAYERS = (0, -1, 1, -2, 2)


@dataclass(frozen=True, slots=True)
class Dot:
    """One case: its place, whether it is within the limit, and what to show on hovering."""

    x: float
    y: float
    good: bool
    title: str


@dataclass(frozen=True, slots=True)
class Strip:
    """One row of a plot: all cases of one dtype and direction."""

    label: str
    y: float
    dots: tuple[Dot, ...]
    worst: str
    worst_id: str


@dataclass(frozen=True, slots=True)
class Plot:
    """Margins of one implementation."""

    implementation: str
    strips: tuple[Strip, ...]
    ticks: tuple[tuple[float, str], ...]
    limit: float
    width: int
    height: int


def plots(results: Iterable[Result]) -> list[Plot]:
    """A plot for each implementation that has margins."""
    groups: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for row in results:
        if row.margin is not None and row.case:
            dtype = SHORT_DTYPES.get(row.case["dtype"], row.case["dtype"])
            groups[row.implementation][f"{dtype} {row.case['direction']}"].append(row)
    return [_plot(name, strips) for name, strips in sorted(groups.items())]


def _worst(row: Result) -> float:
    assert row.margin is not None
    return row.margin.worst


def position(margin: float) -> float:
    """Where a margin lies on the axis."""
    share = math.log(min(max(margin, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return round(LEFT + share * WIDTH, 1)


def _plot(implementation: str, strips: dict[str, list[Result]]) -> Plot:
    drawn = tuple(
        _strip(label, TOP + ROW * (index + 0.5), rows)
        for index, (label, rows) in enumerate(sorted(strips.items(), key=_by_dtype_forward_first))
    )
    decades = range(round(math.log10(LOW)), round(math.log10(HIGH)) + 1)
    ticks = tuple((position(10.0**n), f"{10.0**n:g}") for n in decades)
    height = TOP + ROW * len(drawn) + 24
    return Plot(implementation, drawn, ticks, position(1.0), LEFT + WIDTH + RIGHT, height)


def _by_dtype_forward_first(strip: tuple[str, Any]) -> tuple[str, bool]:
    dtype, _, direction = strip[0].partition(" ")
    return dtype, direction != "fwd"


def _strip(label: str, y: float, rows: list[Result]) -> Strip:
    rows = sorted(rows, key=lambda row: (_worst(row), row.id))
    filled: dict[int, int] = defaultdict(int)
    dots = []
    for row in rows:
        margin = _worst(row)
        x = position(margin)
        # Dots that would cover each other are stacked around the row's middle.
        layer = _LAYERS[filled[int(x / _BIN)] % len(_LAYERS)]
        filled[int(x / _BIN)] += 1
        good = row.outcome is Outcome.PASS
        name = row.margin.name if row.margin else ""
        text = f"{row.id}\n{name}: {shown(margin)} times its limit"
        dots.append(Dot(x, y + layer * 5, good, text))
    return Strip(label, y, tuple(dots), shown(_worst(rows[-1])), rows[-1].id)


def shown(margin: float) -> str:
    """A margin for people."""
    if not math.isfinite(margin):
        return "not finite"
    return f"{margin:.0f}" if 10 <= margin < 1e5 else f"{margin:.2g}"
