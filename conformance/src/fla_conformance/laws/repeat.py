"""repeat and batchrep: the same call gives the same, whatever ran before and whoever is beside."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.inputs import Inputs
from fla_conformance.laws.compare import disagreement
from fla_conformance.laws.cut import axis_of, mapped, member
from fla_conformance.laws.law import Law, NotExecutedError
from fla_conformance.laws.runner import Runner


def repeats(times: int, exact: bool | None = None) -> Callable[[Case, Runner], str | None]:
    """A check that a call gives the same results so many times.

    Args:
        times: how often it runs again.
        exact: compare bits; None asks the implementation's claims.
    """

    def check(case: Case, runner: Runner) -> str | None:
        bits = "deterministic" in runner.claims if exact is None else exact
        inputs = runner.inputs(case)
        first = runner.run(inputs).named
        kept = {name: tensor.clone() for name, tensor in first.items()}
        for other in (1, 2):  # two, for those who return two buffers in turn
            runner.run(runner.inputs(case.but(seed=case.seed + other)))
        # Before the same inputs run again, which would write the same values back.
        if found := disagreement(first, kept, case.dtype, exact=True):
            return f"a later call changed what an earlier one returned: {found}"
        for count in range(1, times + 1):
            again = runner.run(inputs).named
            if found := disagreement(again, kept, case.dtype, bits):
                return f"when run again ({count}), {found}"
        return None

    return check


def batch_repeats(
    batches: tuple[int, ...], exact: bool | None = None
) -> Callable[[Case, Runner], str | None]:
    """A check that a sample gives the same alone and repeated; arguments as of :func:`repeats`."""

    def check(case: Case, runner: Runner) -> str | None:
        bits = "batch_invariant" in runner.claims if exact is None else exact
        one = member(runner.inputs(case), 0)
        if not runner.takes(_of_batch(case, 1)):
            raise NotExecutedError("a batch of one is not declared")
        alone = runner.run(one).named
        for batch in batches:
            if not runner.takes(_of_batch(case, batch)):
                continue
            together = runner.run(_repeated(one, batch)).named
            for index in range(batch):
                rows = {
                    name: tensor[index : index + 1]
                    for name, tensor in together.items()
                    if _has_batch(one, name if name in one.output_names else name[1:])
                }
                if found := disagreement(rows, alone, case.dtype, bits, list(rows)):
                    return f"in place {index} of a batch of {batch}, {found}"
        return None

    return check


def _of_batch(case: Case, batch: int) -> Case:
    return case.but(sizes={**case.sizes, "B": batch})


def _has_batch(inputs: Inputs, name: str) -> bool:
    return any(axis_of(inputs, name, letter) is not None for letter in "BN")


def _repeated(inputs: Inputs, batch: int) -> Inputs:
    def repeat(name: str, tensor: Tensor | None) -> Tensor | None:
        if tensor is None or not _has_batch(inputs, name):
            return tensor
        return torch.cat([tensor] * batch)

    return mapped(inputs, repeat)


REPEAT = Law(
    "repeat",
    "a call gives the same each time, and later calls leave earlier results alone",
    repeats(3),
)
BATCHREP = Law(
    "batchrep",
    "a sample gives the same alone and among others",
    batch_repeats((3,)),
    avoids=frozenset({"varlen", "states"}),
    under="repeat",
    long=True,
)
