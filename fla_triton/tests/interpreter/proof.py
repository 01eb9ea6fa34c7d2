"""Kernels as they are planned for chips, in Triton's interpreter: ``python -m interpreter.proof``.

Host code, plans and kernels are those of the chip; outputs and gradients are judged against the
float64 recurrence as the conformance suite does. No compiler takes part.

    ARCH ...         chips; a case for which some launch the same is interpreted once for them, and
                     the report says of how many cases of a chip another's were taken
    --report FOLDER  write what ran, for the table of supported hardware; what a file of the same
                     toolchain says of other contracts stays
    --control        spoil a mask in the kernels; then the first case of none may pass
    --only TEXT      contracts of these names, a pattern
"""

from __future__ import annotations

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

from compile_only.cases import small_cases, usual_case, wide_case
from compile_only.report import write
from compile_only.targets import BACKENDS
from fla_conformance.inputs import Inputs
from fla_triton.profiles import EVERY
from interpreter.__main__ import answer, kernels_for
from interpreter.alike import Alike
from interpreter.shims import install, spoil_masks
from judging import Tensors, chosen, options_of_proofs, poison_memory, prove, spared


def main() -> int:
    """Run, judge, report."""
    parser = options_of_proofs(__doc__)
    parser.add_argument("archs", nargs="+", choices=EVERY, metavar="ARCH")
    options = parser.parse_args()
    todo = chosen(options.only)
    poison_memory()
    install()
    if options.control:
        spoil_masks()
    everywhere, alike = [], Alike()
    for arch in options.archs:

        def on_chip(inputs: Inputs, arch: str = arch) -> Tensors:
            kernels = kernels_for(inputs.case.contract, EVERY[arch])
            return alike.answer(inputs, lambda: answer(inputs, kernels))

        proven = []
        for subject in todo:
            alike.reused = 0
            cases = [*small_cases(subject), wide_case(subject), usual_case(subject)]
            one = prove(subject, cases[: 1 if options.control else None], on_chip, arch)
            proven.append({**one, "launched_as_elsewhere": alike.reused})
        everywhere += [(arch, one) for one in proven]
        if options.report is not None and not options.control:
            file = options.report / f"interpreted-{arch}.json"
            write(file, "interpreted", (BACKENDS[arch], arch), proven, ("triton", "torch"))
    if options.control:
        return spared(everywhere)
    return 1 if any(one["faults"] for _, one in everywhere) else 0


if __name__ == "__main__":
    sys.exit(main())
