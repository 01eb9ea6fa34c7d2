"""Expected failures: a file of the plugin, and always strict.

``conformance-expect.toml`` lies in the plugin's package (or is given by ``--expect``)::

    [[expect]]
    select  = { op = "gla", direction = "bwd", dtype = "bf16", K = ">=256" }
    where   = { arch = ["gfx942"], "dist.triton" = "<3.5" }    # absent: everywhere
    outcome = "fail.numeric"
    kind    = "upstream"                                       # bug | upstream | flaky-hardware
    reason  = "state rounded to bf16 between chunks by the compiler"
    issue   = "https://example.org/1234"                       # optional
    expires = 2027-03-01
    witness = "gla@1/bwd/bf16/..."                             # optional: must still fail

A check that an entry selects must end with the entry's outcome, and then counts as ``xfail``. If it
passes it is ``xpass``; if it ends otherwise it stays what it is. An entry that selects nothing, has
expired or lacks a reason makes the run fail. What a backend does not support is no expected
failure: its domain has to say so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from fla_conformance.result import Outcome, Result
from fla_conformance.selectors import (
    OF_IMPLEMENTATION,
    Surroundings,
    agrees,
    facts,
    holds,
    place_problem,
    selector_problem,
)
from fla_core.errors import FlaError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same parser under its older name
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

FILE_NAME = "conformance-expect.toml"
KINDS = ("bug", "upstream", "flaky-hardware")
OUTCOMES = frozenset(
    {
        Outcome.FAIL_NUMERIC,
        Outcome.FAIL_SHAPE,
        Outcome.FAIL_DTYPE,
        Outcome.FAIL_LAW,
        Outcome.CRASH,
        Outcome.TIMEOUT,
    }
)
"""Outcomes one may expect. A refusal is not among them: that is what the domain is for."""

_KEYS = {"select", "where", "outcome", "kind", "reason", "issue", "expires", "witness"}


class ExpectationError(FlaError, ValueError):
    """The expectations file cannot be understood; lists everything that is wrong with it."""

    def __init__(self, path: str, problems: Sequence[str]) -> None:
        self.path, self.problems = path, tuple(problems)
        super().__init__("\n  ".join([f"{path} is not valid", *problems]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.problems)


@dataclass(frozen=True, slots=True)
class Expectation:
    """One entry of the file.

    Attributes:
        number: its place in the file, from 1.
        select: which checks it concerns; every selector must agree.
        where: where it holds; empty for everywhere.
        outcome: how these checks end.
        kind: whose fault it is, one of ``KINDS``.
        reason: why, for people.
        expires: last day on which it is accepted.
        issue: where the fault is being followed.
        witness: id of a check that must be among those selected.
    """

    number: int
    select: Mapping[str, Any]
    where: Mapping[str, Any]
    outcome: Outcome
    kind: str
    reason: str
    expires: date
    issue: str = ""
    witness: str = ""

    def __str__(self) -> str:
        chosen = ", ".join(f"{name} = {value!r}" for name, value in self.select.items())
        return f"expectation {self.number} ({chosen})"

    def selects(self, implementation: str, row_id: str, level: str, law: str, case: Any) -> bool:
        """True when every selector agrees with a check."""
        told = facts(implementation, row_id, level, law, case)
        return all(agrees(name, wanted, told.get(name)) for name, wanted in self.select.items())

    def concerns(self, implementation: str) -> bool:
        """True when it can select checks of an implementation."""
        told = facts(implementation, "", "", "", {})
        asked = {name: self.select[name] for name in OF_IMPLEMENTATION if name in self.select}
        return all(agrees(name, wanted, told[name]) for name, wanted in asked.items())

    def applies(self, here: Surroundings) -> bool:
        """True when the entry speaks of this place."""
        return all(holds(name, wanted, here) for name, wanted in self.where.items())


@dataclass(frozen=True, slots=True)
class Expectations:
    """The entries that apply where the run takes place."""

    entries: tuple[Expectation, ...] = ()

    def find(
        self, implementation: str, row_id: str, level: str, law: str = "", case: Any = None
    ) -> Expectation | None:
        """The first entry that selects a check."""
        for entry in self.entries:
            if entry.selects(implementation, row_id, level, law, case or {}):
                return entry
        return None

    def judge(self, result: Result) -> Result:
        """Turn an expected failure into ``xfail`` and an unexpected pass into ``xpass``."""
        entry = self.find(result.implementation, result.id, result.level, result.law, result.case)
        if entry is None:
            return result
        if result.outcome is entry.outcome:
            return replace(result, outcome=Outcome.XFAIL, expected=entry.reason)
        if result.outcome is Outcome.PASS:
            detail = f"passed although {entry} expects {entry.outcome.value}: remove the entry"
            return replace(result, outcome=Outcome.XPASS, detail=detail, expected=entry.reason)
        note = f"{entry} expects {entry.outcome.value}"
        detail = f"{result.detail}\n{note}".strip()
        return replace(result, detail=detail)

    def problems(self, today: date, checks: Iterable[Any]) -> list[str]:
        """Say which entries have expired or select none of all the checks there are.

        Args:
            today: the day to compare with.
            checks: every check of the suite, with ``implementation, id, level, law, case``.
        """
        found = [
            f"{entry} expired on {entry.expires}" for entry in self.entries if entry.expires < today
        ]
        matched: dict[int, set[str]] = {entry.number: set() for entry in self.entries}
        for check in checks if self.entries else ():
            case = {} if check.case is None else check.case.to_json()
            for entry in self.entries:
                if entry.selects(check.implementation, check.id, check.level, check.law, case):
                    matched[entry.number].add(check.id)
        for entry in self.entries:
            ids = matched[entry.number]
            if not ids:
                found.append(f"{entry} selects no check")
            elif entry.witness and entry.witness not in ids:
                found.append(f"{entry} does not select its witness {entry.witness}")
        return found


def load(path: Path, here: Surroundings) -> Expectations:
    """Read the entries that apply here; an absent file has none.

    Raises:
        ExpectationError: the file is not valid; every problem is named.
    """
    if not path.exists():
        return Expectations()
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ExpectationError(path.name, [str(error)]) from error
    problems = [f"unknown key {key!r}, only [[expect]] is known" for key in data if key != "expect"]
    raw = data.get("expect", [])
    if not isinstance(raw, list) or not all(isinstance(item, dict) for item in raw):
        raise ExpectationError(path.name, [*problems, "expect must be an array of tables"])
    for number, item in enumerate(raw, 1):
        problems += [f"entry {number}: {text}" for text in _entry_problems(item)]
    if problems:
        raise ExpectationError(path.name, problems)
    entries = (_entry(number, item) for number, item in enumerate(raw, 1))
    return Expectations(tuple(entry for entry in entries if entry.applies(here)))


def draft(results: Iterable[Result]) -> str:
    """TOML entries for the failures among some results; each still lacks its reason."""
    wanted = (row for row in results if row.outcome in OUTCOMES)
    return "\n".join(_drafted(row) for row in sorted(wanted, key=lambda row: row.id))


def _drafted(row: Result) -> str:
    return "\n".join(
        (
            "[[expect]]",
            f'select  = {{ implementation = "{row.implementation}", id = "{row.id}" }}',
            f'outcome = "{row.outcome.value}"',
            'kind    = "bug"',
            'reason  = ""  # say why: an entry without a reason is refused',
            'expires = ""  # a date such as 2030-01-31',
            "",
        )
    )


def _entry(number: int, item: Mapping[str, Any]) -> Expectation:
    texts = {name: item.get(name, "") for name in ("issue", "witness")}
    return Expectation(
        number,
        item["select"],
        item.get("where", {}),
        Outcome(item["outcome"]),
        item["kind"],
        item["reason"],
        item["expires"],
        **texts,
    )


def _entry_problems(item: Mapping[str, Any]) -> Iterable[str]:
    for key in sorted(set(item) - _KEYS):
        yield f"unknown key {key!r}, wants one of {', '.join(sorted(_KEYS))}"
    select = item.get("select")
    if not isinstance(select, dict) or not select:
        yield f"select must be a table with at least one selector, got {select!r}"
    else:
        for name, value in select.items():
            yield from selector_problem(name, value)
    known = sorted(outcome.value for outcome in OUTCOMES)
    if item.get("outcome") not in known:
        yield f"outcome must be one of {', '.join(known)}, got {item.get('outcome')!r}"
    if item.get("kind") not in KINDS:
        yield f"kind must be one of {', '.join(KINDS)}, got {item.get('kind')!r}"
    reason = item.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        yield "reason is missing: say why the failure is expected"
    if type(item.get("expires")) is not date:
        yield f"expires must be a date such as 2030-01-31, got {item.get('expires')!r}"
    for name in ("issue", "witness"):
        if not isinstance(item.get(name, ""), str):
            yield f"{name} must be a string, got {item[name]!r}"
    where = item.get("where", {})
    if not isinstance(where, dict):
        yield f"where must be a table, got {where!r}"
    else:
        for name, value in where.items():
            yield from place_problem(name, value)
