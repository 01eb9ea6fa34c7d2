"""Badges: a small SVG whose text is computed from a report, never typed."""

from __future__ import annotations

import re

from fla_conformance.levels import LEVELS, Standing
from fla_conformance.report.pages import environment

COLOURS = {
    "": "#9f3a38",
    "L0": "#8a6d1d",
    "L1": "#8a6d1d",
    "L2": "#4c7a1f",
    "L3": "#2a7a3b",
    "L4": "#1a6f5a",
}
LABEL = "fla-kernels"
_CHARACTER = 6.6
"""Width of a character at 11 px; the text is stretched to what its box was made for."""


def text(standings: list[Standing], contract: str) -> str:
    """What the badge of one contract says: what all of its implementations reach, for each dtype.

    ``kda@1 · L3 bf16 fp16 · L2 fp32 · sm90 · 1 xfail``

    Raises:
        LookupError: the report has nothing on that contract.
    """
    weakest = lowest_by_dtype(standings, contract)
    revision, arch = weakest[0].revision, weakest[0].arch
    parts = [f"{contract}@{revision}"]
    for level in (*reversed(LEVELS), ""):
        found = [standing for standing in weakest if standing.level == level]
        if found:
            dtypes = " ".join(filter(None, (short(standing.dtype) for standing in found)))
            parts.append(f"{level or 'no level'} {dtypes}".strip())
    xfails = sum(standing.xfails for standing in weakest)
    return " · ".join([*parts, arch, *([f"{xfails} xfail"] if xfails else [])])


def render(standings: list[Standing], contract: str) -> str:
    """The SVG."""
    weakest = lowest_by_dtype(standings, contract)
    colour = COLOURS[min(standing.level for standing in weakest)]
    message = text(standings, contract)
    widths = [round(len(part) * _CHARACTER + 14) for part in (LABEL, message)]
    template = environment().get_template("badge.svg.j2")
    return template.render(label=LABEL, message=message, widths=widths, colour=colour)


def file_name(plugin: str, contract: str) -> str:
    """``acme-kda.svg``."""
    return re.sub(r"[^a-z0-9_-]+", "-", f"{plugin}-{contract}".lower()) + ".svg"


def short(dtype: str) -> str:
    """``bf16`` of ``bfloat16``."""
    from fla_core.domain import SHORT_DTYPES

    return SHORT_DTYPES.get(dtype, dtype)


def lowest_by_dtype(standings: list[Standing], contract: str) -> list[Standing]:
    """For each dtype the implementation that stands lowest, the first by name among equals.

    Dispatch may choose any of them, so a contract is only as good as the weakest.

    Raises:
        LookupError: the report has nothing on that contract.
    """
    lowest: dict[str, Standing] = {}
    for standing in standings:
        if standing.contract == contract:
            other = lowest.setdefault(standing.dtype, standing)
            if standing.level < other.level:
                lowest[standing.dtype] = standing
    if not lowest:
        raise LookupError(f"the report has nothing on contract {contract!r}")
    return [lowest[dtype] for dtype in sorted(lowest)]
