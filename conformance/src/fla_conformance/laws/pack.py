"""pack and pack-grad: packed sequences give what each of them gives alone."""

from __future__ import annotations

from fla_conformance.case import Case
from fla_conformance.laws.compare import disagreement
from fla_conformance.laws.cut import sequence, together
from fla_conformance.laws.law import Law, NotExecutedError
from fla_conformance.laws.runner import Runner

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
    return disagreement(packed.named, together(inputs, alone), case.dtype)


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
