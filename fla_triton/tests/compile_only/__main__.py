"""Compile every kernel for a chip and judge what it takes: ``python -m compile_only ARCH``.

Prints one line a kernel function and every fault; exits with status 1 if there is a fault.

    --thorough       every dtype, feature and size; otherwise the sizes that models use
    --report FILE    write what was compiled, for the table of supported hardware
    --control NAME   compile a kernel that must be found faulty instead
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from compile_only.budget import faults
from compile_only.cases import Subject, cases, subjects
from compile_only.controls import CONTROLS
from compile_only.driver import Compiled, pretending
from compile_only.report import Outcome, summary, write
from compile_only.run import answer
from compile_only.targets import Target, target
from fla_conformance.inputs import make_inputs


def outcome_of(subject: Subject, chip: Target, thorough: bool, made: list[Compiled]) -> Outcome:
    """Run every case of an implementation; what is compiled meanwhile is appended to ``made``."""
    wrong, first = [], len(made)
    todo = cases(subject, thorough)
    for case in todo:
        before, begin = len(made), time.perf_counter()
        try:
            answer(subject, make_inputs(case), chip)
        except Exception as error:
            text = " ".join(str(error).split())[:400]
            wrong.append(f"{case.id}: {type(error).__name__}: {text}")
        wrong += [f"{case.id}: {fault}" for one in made[before:] for fault in faults(one, chip)]
        taken = time.perf_counter() - begin
        print(f"{taken:6.1f} s {len(made) - before:3} kernels  {case.id}", file=sys.stderr)
    if len(made) == first:
        wrong.append(f"{subject.row.contract}: no kernel was compiled")
    return Outcome(subject.row, tuple(todo), tuple(made[first:]), tuple(wrong))


def main() -> int:
    """Compile, judge, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arch")
    parser.add_argument("--thorough", action="store_true")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--control", choices=CONTROLS)
    parser.add_argument("--only", help="contracts whose names contain this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chip = target(options.arch)
    begin = time.perf_counter()
    if options.control:
        wrong = CONTROLS[options.control](chip)
    else:
        chosen = [one for one in subjects() if (options.only or "") in one.row.contract]
        made: list[Compiled] = []
        with pretending(chip, made.append):
            outcomes = [outcome_of(one, chip, options.thorough, made) for one in chosen]
        wrong = [fault for outcome in outcomes for fault in outcome.faults]
        seconds = time.perf_counter() - begin
        print(summary(chip, outcomes, seconds))
        if options.report is not None:
            write(options.report, chip, outcomes, seconds)
    for fault in wrong:
        print(fault)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
