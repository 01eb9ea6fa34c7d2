"""The report ``fla-conformance-report/1``: what was run, where, and how every check ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]

from fla_conformance.levels import LEVELS, TOLERATED, Standing, standings
from fla_conformance.report.rows import from_row, to_row
from fla_conformance.result import Outcome, Result
from fla_core.errors import FlaError

SCHEMA = "fla-conformance-report/1"


class ReportError(FlaError, ValueError):
    """A file is not a report of this schema."""

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{path} is not a {SCHEMA}: {problem}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.problem)


@dataclass(frozen=True, slots=True)
class Report:
    """One run of the suite.

    Attributes:
        header: suite, plugin, host, distributions, settings of the run; see the schema.
        results: one for each check, in the order of implementation, level and id.
        problems: what is wrong beside the checks (an expectation that has expired).
    """

    header: Mapping[str, Any]
    results: tuple[Result, ...]
    problems: tuple[str, ...] = field(default=())

    @classmethod
    def of(
        cls, header: Mapping[str, Any], results: Iterable[Result], problems: Iterable[str] = ()
    ) -> Report:
        """A report with its results in the one order that does not depend on the run's."""
        ordered = sorted(results, key=lambda row: (row.implementation, row.level, row.id))
        return cls(header, tuple(ordered), tuple(problems))

    @property
    def plugin(self) -> str:
        """Name of the plugin."""
        return str(self.header["plugin"]["name"])

    @property
    def arch(self) -> str:
        """Architecture the run took place on."""
        return str(self.header["host"]["arch"])

    @property
    def whole(self) -> bool:
        """Whether every check that was asked for has ended, and none was left out by hand."""
        return bool(self.header["complete"]) and not self.header["selection"]["only"]

    @property
    def ok(self) -> bool:
        """True when something passed, nothing failed and the run came to its end."""
        passed = any(row.outcome is Outcome.PASS for row in self.results)
        fine = all(row.outcome in TOLERATED for row in self.results)
        return passed and fine and bool(self.header["complete"]) and not self.problems

    @property
    def failures(self) -> tuple[Result, ...]:
        """Every result that stands in the way of a level."""
        return tuple(row for row in self.results if row.outcome not in TOLERATED)

    @property
    def expected(self) -> tuple[Result, ...]:
        """Failures that the plugin has announced."""
        return tuple(row for row in self.results if row.outcome is Outcome.XFAIL)

    @property
    def counts(self) -> dict[str, int]:
        """How often each outcome occurred, without those that did not."""
        found = {outcome.value: 0 for outcome in Outcome}
        for row in self.results:
            found[row.outcome.value] += 1
        return {name: n for name, n in found.items() if n}

    @property
    def standings(self) -> list[Standing]:
        """Where each implementation stands for each dtype."""
        return standings(self.results, self.arch, self.whole)

    def to_json(self) -> dict[str, Any]:
        """The document; the same results give the same document in any order of running."""
        return {
            "schema": SCHEMA,
            **self.header,
            "ok": self.ok,
            "problems": list(self.problems),
            "summary": [_summary(standing) for standing in self.standings],
            "cases": [to_row(row) for row in self.results],
        }

    def write(self, path: Path) -> None:
        """Write the document after checking it against its schema."""
        data = self.to_json()
        check(data, path.name)
        text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Report:
        """Read a document.

        Raises:
            ReportError: it is not JSON, or not a report of this schema.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ReportError(path.name, str(error)) from error
        check(data, path.name)
        derived = {"schema", "ok", "problems", "summary", "cases"}
        header = {name: value for name, value in data.items() if name not in derived}
        return cls.of(header, map(from_row, data["cases"]), data["problems"])


@cache
def schema() -> Mapping[str, Any]:
    """The JSON Schema, which is part of the distribution."""
    text = files("fla_conformance.report").joinpath("schema.json").read_text(encoding="utf-8")
    loaded: Mapping[str, Any] = json.loads(text)
    return loaded


def check(data: Any, name: str) -> None:
    """Check a document against the schema.

    Raises:
        ReportError: names the place of the first violation.
    """
    validator = jsonschema.Draft202012Validator(schema())
    error = jsonschema.exceptions.best_match(validator.iter_errors(data))
    if error is not None:
        raise ReportError(name, f"{error.json_path}: {error.message[:300]}")


def _summary(standing: Standing) -> dict[str, Any]:
    return {
        "implementation": standing.implementation,
        "contract": standing.contract,
        "revision": standing.revision,
        "dtype": standing.dtype,
        "arch": standing.arch,
        "level": standing.level,
        "xfail": standing.xfails,
        "badge": standing.badge,
        "counts": {
            level: {outcome.value: n for outcome, n in sorted(standing.counts[level].items())}
            for level in LEVELS
            if level in standing.counts
        },
    }
