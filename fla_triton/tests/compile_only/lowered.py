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

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from compile_only.cases import Subject, small_cases, split_case
from compile_only.controls import spoil_masks
from compile_only.driver import Compiled, pretending
from compile_only.opencl import OpenCL
from compile_only.report import write
from compile_only.run import answer, answer_pooled
from compile_only.targets import HOST, Target, target
from fla_conformance.case import Case
from fla_triton.plan import DECODE_TOKENS
from judging import Answer, chosen, options_of_proofs, poison_memory, prove, spared


def ways(subject: Subject, chip: Target) -> Iterator[tuple[list[Case], Answer]]:
    """Cases, and how their answers come about: from tensors, and of decoding from a pool too."""
    small = small_cases(subject)
    yield [*small, split_case(subject)], partial(answer, subject, chip=chip)
    if subject.row.knows_pools:
        decoding = [case for case in small if case.sizes["T"] <= DECODE_TOKENS]
        for v_first in (False, True):
            yield decoding, partial(answer_pooled, subject, chip=chip, v_first=v_first)


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One proof of an implementation from those of several ways to run it."""
    return {
        **parts[0],
        "cases": sum(one["cases"] for one in parts),
        "worst_margin": max(one["worst_margin"] for one in parts),
        "faults": [fault for one in parts for fault in one["faults"]],
    }


def main() -> int:
    """Run, judge, report."""
    parser = options_of_proofs(__doc__)
    parser.add_argument("--dtype", default="")
    options = parser.parse_args()
    todo = chosen(options.only)
    poison_memory()
    if options.control:
        spoil_masks()
    made: list[Compiled] = []
    runtime, chip = OpenCL(), target(HOST)
    proven = []
    with pretending(chip, made.append, runtime):
        for subject in todo:
            first, launched, parts = len(made), runtime.launches, []
            for cases, on_chip in ways(subject, chip):
                some = [case for case in cases if options.dtype in ("", case.dtype)]
                parts.append(prove(subject, some[: 1 if options.control else None], on_chip, HOST))
            seen = {"kernels": len(made) - first, "launches": runtime.launches - launched}
            proven.append({**joined(parts), **seen})
    faults = sum(len(one["faults"]) for one in proven)
    print(f"{len(made)} kernels, {runtime.launches} launches, {faults} faults")
    if options.control:
        return spared([(HOST, one) for one in proven])
    if options.report is not None:
        toolchain = ("triton-xpu", "torch", "intel-opencl-rt")
        file = options.report / f"lowered-{HOST}.json"
        write(file, "lowered code run on CPU", ("xpu", HOST), proven, toolchain)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
