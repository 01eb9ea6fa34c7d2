"""What was compiled: a table for people, a file for the table of supported hardware."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from compile_only.cases import named
from compile_only.driver import Compiled
from compile_only.targets import Target
from fla_conformance.case import Case
from fla_triton.declared import CHUNK, Row


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one implementation.

    Attributes:
        row: it.
        cases: what was called.
        kernels: that calls of each dtype compiled, and none of an earlier dtype had.
        faults: what is wrong with them.
    """

    row: Row
    cases: tuple[Case, ...]
    kernels: Mapping[str, Sequence[Compiled]]
    faults: tuple[str, ...]

    @property
    def made(self) -> list[Compiled]:
        """Kernels of every dtype."""
        return [one for kernels in self.kernels.values() for one in kernels]


def worst(kernels: Sequence[Compiled]) -> dict[str, int]:
    """The largest of each resource."""
    return {
        name: max((getattr(one.resources, name) for one in kernels), default=0)
        for name in ("shared", "registers", "stack")
    }


def by_function(kernels: Sequence[Compiled]) -> dict[str, list[Compiled]]:
    """Compiled kernels of each function."""
    found: dict[str, list[Compiled]] = {}
    for one in kernels:
        found.setdefault(one.kernel, []).append(one)
    return found


def summary(chip: Target, outcomes: Sequence[Outcome], seconds: float) -> str:
    """A table, a line a kernel function."""
    heads = "compiled  seconds  shared  registers  stack  matrix"
    lines = [f"{chip.profile.arch:28} {heads}"]
    made = [one for outcome in outcomes for one in outcome.made]
    for name, kernels in by_function(made).items():
        most = worst(kernels)
        used = sorted({instruction for one in kernels for instruction in one.resources.matrix})
        lines.append(
            f"{name:28} {len(kernels):8} {sum(one.seconds for one in kernels):8.1f}"
            f" {most['shared']:7} {most['registers']:10}"
            f" {most['stack']:6}  {' '.join(used)}"
        )
    wrong = sum(len(outcome.faults) for outcome in outcomes)
    lines.append(f"{len(made)} kernels in {seconds:.0f} s, {wrong} faults")
    return "\n".join(lines)


def row(outcome: Outcome) -> dict[str, Any]:
    """What a proof says of one implementation, of all its dtypes and of each."""
    return {
        **named(outcome.row),
        "directions": sorted({case.direction for case in outcome.cases}),
        "dtypes": sorted({case.dtype for case in outcome.cases}),
        **_taken(outcome.cases, outcome.made),
        "by_dtype": {
            dtype: _taken([case for case in outcome.cases if case.dtype == dtype], made)
            for dtype, made in outcome.kernels.items()
        },
        "faults": list(outcome.faults),
    }


def _taken(cases: Sequence[Case], made: Sequence[Compiled]) -> dict[str, Any]:
    functions = {name: worst(kernels) for name, kernels in by_function(made).items()}
    return {"cases": len(cases), "kernels": len(made), "functions": functions}


def write(
    path: Path,
    kind: str,
    chip: tuple[str, str],
    rows: Sequence[dict[str, Any]],
    toolchain: Sequence[str],
) -> None:
    """Write a proof, for the table of supported hardware.

    Args:
        path: what it says of others stays, if it was written under the same toolchain.
        kind: in the words of that table.
        chip: what was proven for, its plugin and its architecture.
        rows: one an implementation.
        toolchain: distributions whose versions matter.
    """
    today = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    versions = {name: version(name).partition("+")[0] for name in toolchain}
    found = {_whose(one): {**one, "date": today} for one in rows}
    if path.exists():
        old = json.loads(path.read_text(encoding="utf-8"))
        if old["versions"] == versions:
            found = {**{_whose(one): one for one in old["implementations"]}, **found}
    document = {
        "schema": "fla-proof/1",
        "kind": kind,
        "backend": chip[0],
        "arch": chip[1],
        "versions": versions,
        "implementations": [found[one] for one in sorted(found)],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _whose(one: Mapping[str, Any]) -> tuple[str, str]:
    return one["contract"], one.get("variant", CHUNK)
