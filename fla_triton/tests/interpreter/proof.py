"""Kernels as they are planned for chips, in Triton's interpreter: ``python -m interpreter.proof``.

Host code, plans and kernels are those of the chip; outputs and gradients are judged against the
float64 recurrence as the conformance suite does. No compiler takes part.

    ARCH ...         chips; those of one vendor that are planned alike give the same answers
    --report FOLDER  write what ran, for the table of supported hardware; what a file of the same
                     toolchain says of other contracts stays
    --control        spoil a mask in the kernels; then the first case of none may pass
    --only TEXT      contracts of these names, a pattern
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch

from compile_only.cases import Subject, small_cases, subjects, usual_case
from compile_only.report import write
from compile_only.targets import BACKENDS
from fla_conformance.case import Case
from fla_conformance.gold import gold
from fla_conformance.inputs import make_inputs
from fla_conformance.numerics import judge
from fla_triton.profiles import EVERY, Profile
from interpreter.__main__ import answer, kernels_for
from interpreter.shims import correct_bfloat16, spoil_masks, watch_bounds


def judged(case: Case, profile: Profile) -> tuple[str, float]:
    """Why a case fails, ``""`` where it does not, and its worst margin."""
    try:
        kernels = kernels_for(case.contract, profile)
        found = judge(case, answer(make_inputs(case), kernels), gold(case))
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", 0.0
    worst = max((max(m.block, m.token) for m in found.margins.values()), default=0.0)
    return found.failure or "", worst


def prove(subject: Subject, todo: Sequence[Case], profile: Profile) -> dict[str, Any]:
    """Run cases of an implementation."""
    failures, margins = [], []
    for case in todo:
        begin = time.perf_counter()
        failure, margin = judged(case, profile)
        margins.append(margin)
        taken = time.perf_counter() - begin
        print(f"{profile.arch} {taken:6.1f} s {margin:6.3f} {case.id} {failure}", flush=True)
        if failure:
            failures.append(f"{case.id}: {failure}")
    return {
        "contract": subject.row.contract,
        "revision": subject.row.revision,
        "directions": sorted({case.direction for case in todo}),
        "dtypes": sorted({case.dtype for case in todo}),
        "cases": len(todo),
        "worst_margin": round(max(margins, default=0.0), 3),
        "faults": failures,
    }


def main() -> int:
    """Run, judge, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archs", nargs="+", choices=EVERY, metavar="ARCH")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--only", default="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    correct_bfloat16()
    watch_bounds()
    if options.control:
        spoil_masks()
    chosen = [one for one in subjects() if fnmatchcase(one.row.contract, options.only)]
    faulty, spared = len(chosen) == 0, []
    for arch in options.archs:
        proven = []
        for subject in chosen:
            todo = [*small_cases(subject), usual_case(subject)]
            proven.append(prove(subject, todo[: 1 if options.control else None], EVERY[arch]))
        faulty |= any(one["faults"] for one in proven)
        spared += [f"{arch} {one['contract']}" for one in proven if not one["faults"]]
        if options.report is not None and not options.control:
            file = options.report / f"interpreted-{arch}.json"
            write(file, "interpreted", (BACKENDS[arch], arch), proven, ("triton", "torch"))
    if options.control:
        print(f"spoiled kernels pass: {', '.join(spared)}" if spared else "spoiled kernels fail")
        return 1 if spared else 0
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
