"""Judging what kernels answer against the float64 recurrence, as the conformance suite does.

What runs the kernels, an interpreter or a compiler, is the caller's: an answer is a function from
inputs to outputs and gradients.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compile_only.cases import Subject, further, named, subjects
from fla_conformance.case import Case
from fla_conformance.gold import gold
from fla_conformance.inputs import Inputs, make_inputs
from fla_conformance.numerics import judge

Tensors = dict[str, Tensor]
Answer = Callable[[Inputs], Tensors]


def poison_memory() -> None:
    """Fill new memory with NaN, so that what is read before it is written shows; one thread."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def judged(case: Case, answer: Answer) -> tuple[str, dict[str, float]]:
    """Why a case fails, ``""`` where it does not, and the worst margin of each tensor."""
    try:
        found = judge(case, answer(make_inputs(case)), gold(case))
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", {}
    return found.failure, {n: round(max(m.block, m.token), 3) for n, m in found.margins.items()}


def prove(subject: Subject, todo: Sequence[Case], answer: Answer, where: str) -> dict[str, Any]:
    """Run cases of an implementation, a line each.

    Args:
        subject: the implementation.
        todo: its cases.
        answer: what its kernels say.
        where: it runs, for the lines.

    Returns:
        what a proof says of the implementation; ``"faults"`` is empty when every case passed.
    """
    failures, worst = [], 0.0
    for case in todo:
        begin = time.perf_counter()
        failure, margins = judged(case, answer)
        margin = max(margins.values(), default=0.0)
        worst = max(worst, margin)
        taken = time.perf_counter() - begin
        print(f"{where} {taken:6.1f} s {margin:6.3f} {case.id} {failure}", flush=True)
        if failure:
            failures.append(f"{case.id}: {failure}")
    return {
        **named(subject.row),
        "directions": sorted({case.direction for case in todo}),
        "dtypes": sorted({case.dtype for case in todo}),
        "cases": len(todo),
        "worst_margin": worst,
        "faults": failures,
    }


def options_of_proofs(description: str | None) -> argparse.ArgumentParser:
    """What every proof can be asked for; see :func:`chosen` and :func:`spared`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--only", default="*")
    return parser


def chosen(only: str) -> list[Subject]:
    """Implementations of the contracts that a pattern names; an error where it names none."""
    every = (*subjects(), *further())
    found = [one for one in every if fnmatchcase(one.row.title, only)]
    if not found:
        raise SystemExit(f"--only: expected the name or pattern of a contract, got {only!r}")
    return found


def spared(proven: Sequence[tuple[str, dict[str, Any]]]) -> int:
    """Say which spoiled kernels passed, where they ran; the exit status, 0 when none did."""
    names = [f"{where} {one['contract']}" for where, one in proven if not one["faults"]]
    print(f"spoiled kernels pass: {', '.join(names)}" if names else "spoiled kernels fail")
    return 1 if names else 0
