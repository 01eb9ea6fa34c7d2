"""pack and pack-grad: packed sequences give what each of them gives alone."""

from __future__ import annotations

import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.inputs import Inputs
from fla_conformance.laws.compare import disagreement
from fla_conformance.laws.cut import axis_of, sequence
from fla_conformance.laws.law import Law, NotExecutedError
from fla_conformance.laws.runner import Ran, Runner

_NEEDS = frozenset({"varlen"})


def _check(case: Case, runner: Runner) -> str | None:
    lengths = case.lengths or ()
    inputs = runner.inputs(case)
    packed = runner.run(inputs)
    dense = case.but(lengths=None, features=case.features - _NEEDS)
    for length in lengths:
        one = dense.but(sizes={**case.sizes, "T": length})
        if not runner.takes(one):
            raise NotExecutedError(f"a sequence of {length} tokens alone is not declared")
    alone = [runner.run(sequence(inputs, index)) for index in range(len(lengths))]
    return disagreement(packed.named, _together(inputs, alone), case.dtype)


def _together(inputs: Inputs, alone: list[Ran]) -> dict[str, Tensor]:
    found = {}
    for name in alone[0].outputs:
        axis = 1 if axis_of(inputs, name, "T") is not None else 0
        found[name] = torch.cat([ran.outputs[name] for ran in alone], dim=axis)
    for name in alone[0].gradients:
        each = [ran.gradients[name] for ran in alone]
        if axis_of(inputs, name, "T") is not None:
            found[f"d{name}"] = torch.cat(each, dim=1)
        elif axis_of(inputs, name, "N") is not None:
            found[f"d{name}"] = torch.cat(each, dim=0)
        else:  # a parameter that all sequences share
            found[f"d{name}"] = torch.stack(each).sum(0)
    return found


_AVOIDS = frozenset({"states"})

PACK = Law(
    "pack",
    "packed sequences give the outputs and states each has alone",
    _check,
    needs=_NEEDS,
    avoids=_AVOIDS,
    direction="fwd",
)
PACK_GRAD = Law(
    "pack-grad",
    "packed sequences give the gradients each has alone",
    _check,
    needs=_NEEDS,
    avoids=_AVOIDS,
    outputs_too=False,
    under="pack",
)
