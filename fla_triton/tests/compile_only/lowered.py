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
from functools import partial

from compile_only.cases import small_cases
from compile_only.controls import spoil_masks
from compile_only.driver import Compiled, pretending
from compile_only.opencl import OpenCL
from compile_only.report import write
from compile_only.run import answer
from compile_only.targets import HOST, target
from judging import chosen, options_of_proofs, poison_memory, prove, spared


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
            cases = [case for case in small_cases(subject) if options.dtype in ("", case.dtype)]
            first, launched = len(made), runtime.launches
            on_chip = partial(answer, subject, chip=chip)
            found = prove(subject, cases[: 1 if options.control else None], on_chip, HOST)
            seen = {"kernels": len(made) - first, "launches": runtime.launches - launched}
            proven.append({**found, **seen})
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
