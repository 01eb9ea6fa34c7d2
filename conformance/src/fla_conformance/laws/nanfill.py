"""nanfill: every element of an output and of scratch is written before it is read."""

from __future__ import annotations

from fla_conformance.case import Case
from fla_conformance.laws.compare import disagreement
from fla_conformance.laws.law import Law
from fla_conformance.laws.runner import Runner


def _check(case: Case, runner: Runner) -> str | None:
    inputs = runner.inputs(case)
    usual = runner.run(inputs).named
    with runner.device.poison():
        poisoned = runner.run(inputs).named
    for name, tensor in poisoned.items():
        if not bool(tensor.isfinite().all()):
            where = (~tensor.isfinite()).nonzero()[0].tolist()
            return f"{name} is not finite at {where} when fresh memory is full of NaN"
    # Deterministic mode may choose other algorithms for the same sums.
    if found := disagreement(poisoned, usual, case.dtype):
        return f"when fresh memory is full of NaN, {found}"
    return None


NANFILL = Law("nanfill", "results do not depend on what fresh memory holds", _check)
