"""What was compiled: a table for people, a file for the table of supported hardware."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from compile_only.driver import Compiled
from compile_only.targets import Target
from fla_conformance.case import Case
from fla_triton.declared import Row


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one implementation: its cases, its kernels, and what is wrong with them."""

    row: Row
    cases: tuple[Case, ...]
    kernels: tuple[Compiled, ...]
    faults: tuple[str, ...]


def worst(kernels: Sequence[Compiled]) -> dict[str, int]:
    """The largest of each resource."""
    return {
        name: max((getattr(one.resources, name) for one in kernels), default=0)
        for name in ("shared", "registers", "stack")
    }


def by_function(outcomes: Sequence[Outcome]) -> dict[str, list[Compiled]]:
    """Compiled kernels of each function."""
    found: dict[str, list[Compiled]] = {}
    for outcome in outcomes:
        for one in outcome.kernels:
            found.setdefault(one.kernel, []).append(one)
    return found


def summary(chip: Target, outcomes: Sequence[Outcome], seconds: float) -> str:
    """A table, a line a kernel function."""
    heads = "compiled  seconds  shared  registers  stack  matrix"
    lines = [f"{chip.profile.arch:28} {heads}"]
    for name, kernels in by_function(outcomes).items():
        most = worst(kernels)
        used = sorted({instruction for one in kernels for instruction in one.resources.matrix})
        lines.append(
            f"{name:28} {len(kernels):8} {sum(one.seconds for one in kernels):8.1f}"
            f" {most['shared']:7} {most['registers']:10}"
            f" {most['stack']:6}  {' '.join(used)}"
        )
    total = sum(len(outcome.kernels) for outcome in outcomes)
    wrong = sum(len(outcome.faults) for outcome in outcomes)
    lines.append(f"{total} kernels in {seconds:.0f} s, {wrong} faults")
    return "\n".join(lines)


def document(chip: Target, outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    """The proof as data."""
    toolchain = ("triton-xpu" if chip.backend == "xpu" else "triton", "torch")
    return {
        "schema": "fla-proof/1",
        "kind": "compiled",
        "backend": chip.backend,
        "arch": chip.profile.arch,
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "versions": {name: version(name).partition("+")[0] for name in toolchain},
        "seconds": round(seconds),
        "implementations": [
            {
                "contract": outcome.row.contract,
                "revision": outcome.row.revision,
                "directions": sorted({case.direction for case in outcome.cases}),
                "dtypes": sorted({case.dtype for case in outcome.cases}),
                "cases": len(outcome.cases),
                "kernels": len(outcome.kernels),
                "faults": list(outcome.faults),
            }
            for outcome in outcomes
        ],
        "kernels": [
            {"kernel": name, "compiled": len(kernels), **worst(kernels)}
            for name, kernels in by_function(outcomes).items()
        ],
    }


def write(path: Path, chip: Target, outcomes: Sequence[Outcome], seconds: float) -> None:
    """Write the proof."""
    text = json.dumps(document(chip, outcomes, seconds), indent=1)
    path.write_text(text + "\n", encoding="utf-8")
