"""Run lowered code on the CPU and judge what it computes: ``python -m compile_only.lowered``.

Kernels are compiled for Intel GPUs without their matrix units and block reads, and the SPIR-V that
comes out runs through OpenCL. Host code, launches and kernels are those of a GPU; outputs and
gradients are judged against the float64 recurrence as the conformance suite does.

    --report FOLDER  write what ran, for the table of supported hardware; what a file of the same
                     toolchain says of other contracts stays
    --control        spoil a mask in the kernels; then the first case of none may pass
    --only TEXT      contracts of these names, a pattern
    --dtype NAME     cases of this dtype alone
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from compile_only.cases import Subject, small_cases, subjects
from compile_only.controls import spoil_masks
from compile_only.driver import Compiled, pretending
from compile_only.opencl import OpenCL
from compile_only.report import write
from compile_only.run import answer
from compile_only.targets import HOST, target
from fla_conformance.case import Case
from fla_conformance.gold import gold
from fla_conformance.inputs import make_inputs
from fla_conformance.numerics import judge


def judged(subject: Subject, case: Case) -> tuple[str, float]:
    """Why a case fails, ``""`` where it does not, and its worst margin."""
    try:
        found = judge(case, answer(subject, make_inputs(case), target(HOST)), gold(case))
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", 0.0
    worst = max((max(m.block, m.token) for m in found.margins.values()), default=0.0)
    return found.failure or "", worst


def prove(
    subject: Subject, todo: list[Case], made: list[Compiled], runtime: OpenCL
) -> dict[str, Any]:
    """Run cases of an implementation."""
    first, launched, failures, margins = len(made), runtime.launches, [], []
    for case in todo:
        begin = time.perf_counter()
        failure, margin = judged(subject, case)
        margins.append(margin)
        print(f"{time.perf_counter() - begin:6.1f} s {margin:6.3f} {case.id} {failure}", flush=True)
        if failure:
            failures.append(f"{case.id}: {failure}")
    return {
        "contract": subject.row.contract,
        "revision": subject.row.revision,
        "directions": sorted({case.direction for case in todo}),
        "dtypes": sorted({case.dtype for case in todo}),
        "cases": len(todo),
        "kernels": len(made) - first,
        "launches": runtime.launches - launched,
        "worst_margin": round(max(margins, default=0.0), 3),
        "faults": failures,
    }


def main() -> int:
    """Run, judge, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--only", default="*")
    parser.add_argument("--dtype", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    if options.control:
        spoil_masks()
    made: list[Compiled] = []
    runtime = OpenCL()
    proven = []
    with pretending(target(HOST), made.append, runtime):
        for subject in subjects():
            if not fnmatchcase(subject.row.contract, options.only):
                continue
            todo = [case for case in small_cases(subject) if options.dtype in case.dtype]
            proven.append(prove(subject, todo[: 1 if options.control else None], made, runtime))
    faults = sum(len(one["faults"]) for one in proven)
    print(f"{len(made)} kernels, {runtime.launches} launches, {faults} faults")
    if options.control:
        spared = [one["contract"] for one in proven if not one["faults"]]
        print(f"spoiled kernels pass: {', '.join(spared)}" if spared else "spoiled kernels fail")
        return 1 if spared else 0
    if options.report is not None:
        toolchain = ("triton-xpu", "torch", "intel-opencl-rt")
        file = options.report / f"lowered-{HOST}.json"
        write(file, "lowered code run on CPU", ("xpu", HOST), proven, toolchain)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
