"""Results as plain data, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fla_conformance.levels import contract_of, revision_of
from fla_conformance.result import Margin, Outcome, Result

_NUMBERS = ("block", "token", "gain", "ratio")


def to_row(result: Result) -> dict[str, Any]:
    """A row of the report's ``cases``; :func:`from_row` reads it back."""
    return {
        "id": result.id,
        "implementation": result.implementation,
        "contract": contract_of(result.implementation),
        "revision": revision_of(result.implementation),
        "level": result.level,
        "law": result.law,
        "outcome": result.outcome.value,
        "margin": _margin(result.margin),
        "plan": result.plan,
        "seconds": round(result.seconds, 6),
        "case": dict(result.case),
        "detail": result.detail,
        "expected": result.expected,
    }


def from_row(row: Mapping[str, Any]) -> Result:
    """The result that :func:`to_row` wrote."""
    names = ("id", "implementation", "level", "case", "detail", "plan", "seconds", "law")
    return Result(
        **{name: row[name] for name in names},
        outcome=Outcome(row["outcome"]),
        margin=_read_margin(row["margin"]),
        expected=row["expected"],
    )


def _margin(margin: Margin | None) -> dict[str, Any] | None:
    if margin is None:
        return None
    found = {name: getattr(margin, name) for name in _NUMBERS}
    # JSON has no infinity; null stands for whatever is not finite.
    numbers = {name: value if math.isfinite(value) else None for name, value in found.items()}
    return {**numbers, "name": margin.name}


def _read_margin(data: Mapping[str, Any] | None) -> Margin | None:
    if data is None:
        return None
    numbers = {name: math.inf if data[name] is None else data[name] for name in _NUMBERS}
    return Margin(**numbers, name=data["name"])
