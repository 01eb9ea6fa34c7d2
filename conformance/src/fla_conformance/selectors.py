"""How an expectation selects checks and places: a closed vocabulary without substrings."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from fla_conformance.case import REGIMES
from fla_conformance.levels import LEVELS, contract_of, revision_of
from fla_core.contracts import CONTRACTS
from fla_core.domain import AXES, SHORT_DTYPES

_COMPARISON = re.compile(r"(>=|<=|==|!=|>|<)\s*(\d+)")
_COMPARE = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
OF_IMPLEMENTATION = ("implementation", "variant", "op", "revision")
"""Selectors that an implementation answers alike for all its checks."""

_WORDS: dict[str, tuple[str, ...] | None] = {
    "id": None,
    "implementation": None,
    "variant": None,
    "law": None,
    "op": tuple(CONTRACTS),
    "direction": ("fwd", "bwd"),
    "dtype": (*SHORT_DTYPES.values(), *SHORT_DTYPES),
    "form": ("chunk", "recurrent", "parallel"),
    "level": LEVELS,
    "regime": REGIMES,
}
"""Selectors by name with the words they take, None for any."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a run takes place, as far as ``where`` can ask for it."""

    arch: str
    device: str
    distributions: Mapping[str, str]


def selector_problem(name: str, value: Any) -> Iterable[str]:
    """What is wrong with one selector."""
    if name in AXES or name == "revision":
        text = isinstance(value, str) and _COMPARISON.fullmatch(value.strip())
        sizes = value if isinstance(value, list) else [value]
        if not text and not all(type(size) is int for size in sizes):
            yield f"select.{name} must be a size, a list of sizes or such as '>=256', got {value!r}"
    elif name == "features":
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            yield f"select.features must be a list of feature names, got {value!r}"
    elif name in _WORDS:
        words = _WORDS[name]
        for word in value if isinstance(value, list) else [value]:
            if not isinstance(word, str) or (words is not None and word not in words):
                allowed = "a string" if words is None else f"one of {', '.join(words)}"
                yield f"select.{name} must be {allowed}, got {word!r}"
    else:
        known = ", ".join((*_WORDS, "revision", "features", *AXES))
        yield f"select.{name} is not a selector, wants one of {known}"


def place_problem(name: str, value: Any) -> Iterable[str]:
    """What is wrong with one condition on the place."""
    if name in ("arch", "device"):
        names = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str) for item in names):
            yield f"where.{name} must be a name or a list of names, got {value!r}"
    elif name.startswith("dist."):
        try:
            SpecifierSet(value)
        except (InvalidSpecifier, AttributeError, TypeError):
            yield f"where.{name!r} must be a version range such as '<3.5', got {value!r}"
    else:
        yield f'where.{name} is not known, wants arch, device or "dist.NAME"'


def facts(
    implementation: str, row_id: str, level: str, law: str, case: Mapping[str, Any]
) -> dict[str, Any]:
    """What selectors can ask of a check, by their names."""
    found: dict[str, Any] = {
        **case.get("sizes", {}),
        "id": row_id,
        "implementation": implementation,
        "variant": implementation.partition("#")[2],
        "level": level,
        "law": law,
        "op": contract_of(implementation),
        "revision": revision_of(implementation),
        "features": frozenset(case.get("features", ())),
    }
    if (lengths := case.get("lengths")) is not None:
        found["N"] = len(lengths)
    for name in ("direction", "form", "regime"):
        found[name] = case.get(name)
    found["dtype"] = SHORT_DTYPES.get(case.get("dtype", ""))
    return found


def agrees(name: str, wanted: Any, fact: Any) -> bool:
    """True when a fact is what a selector wants."""
    if fact is None:
        return False
    if name == "features":
        return bool(fact.issuperset(wanted))
    if isinstance(wanted, str) and isinstance(fact, int):
        comparison = _COMPARISON.fullmatch(wanted.strip())
        assert comparison is not None, "checked when the file was read"
        return bool(_COMPARE[comparison[1]](fact, int(comparison[2])))
    options = wanted if isinstance(wanted, list) else [wanted]
    if name == "dtype":
        options = [SHORT_DTYPES.get(option, option) for option in options]
    return fact in options


def holds(name: str, wanted: Any, here: Surroundings) -> bool:
    """True when a condition speaks of this place."""
    if name in ("arch", "device"):
        names = wanted if isinstance(wanted, list) else [wanted]
        actual = here.arch if name == "arch" else here.device.partition(":")[0]
        return actual in names
    version = here.distributions.get(name.removeprefix("dist."))
    return version is not None and SpecifierSet(wanted).contains(version, prereleases=True)
