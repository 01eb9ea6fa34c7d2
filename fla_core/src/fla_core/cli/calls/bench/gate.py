"""The gate: no speed of an operator is told before its answers are right.

Two calls of the very function that is timed are compared with the definition in float64: a small
one, dense and packed (ours with an empty sequence), and the timed one itself, of which the last row
and head is compared over all its tokens. Errors are those of :mod:`fla_core.cli.calls.measure`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fla_core.cli.calls import measure
from fla_core.cli.calls.bench.golds import Golds, labelled
from fla_core.cli.calls.bench.workload import Workload, slice_of, sliced
from fla_core.cli.calls.problem import Problem

SMALL_TOKENS = 80
"""One chunk of 64 and a part of the next."""

LENGTHS = (17, 0, 63)
"""Of packed sequences; they sum to as many."""

FULL_LENGTHS = (17, 63)
"""For operators of others, which need not take a sequence of no tokens as contracts here do."""

Function = Callable[[Problem], dict[str, Tensor]]
"""Calls what is timed; outputs by name."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gate found.

    Attributes:
        errors: the largest error of each comparison, in units; infinite for what is not finite.
        bound: what is allowed.
        failure: which outputs and gradients are off, ``""`` when none is.
    """

    errors: Mapping[str, float]
    bound: float
    failure: str = ""

    @property
    def green(self) -> bool:
        """True when everything is right."""
        return not self.failure


Definitions = tuple[measure.Evaluate, measure.Evaluate]
DEFINITIONS: Definitions = (measure.by_token, measure.by_chunks)
"""What is right, of small calls and of a slice of a large one."""


def check(
    workload: Workload,
    timed: Problem,
    function: Function,
    golds: Golds,
    definitions: Definitions = DEFINITIONS,
    lengths: tuple[int, ...] = LENGTHS,
) -> Verdict:
    """Compare a function with the definition, on small calls and on the timed one.

    Args:
        workload: what is timed.
        timed: its tensors; gradients are compared if they require them.
        function: calls the implementation.
        golds: what is known already.
        definitions: what is right.
        lengths: of the packed small call.
    """
    few = small(workload, timed, function, golds, definitions, lengths)
    whole = sliced_call(workload, timed, function, golds, definitions)
    failure = "; ".join(v.failure for v in (few, whole) if v.failure)
    return Verdict({**few.errors, **whole.errors}, max(few.bound, whole.bound), failure)


def compared(workload: Workload) -> dict[str, Workload]:
    """What :func:`check` compares with the definition, by label."""
    few = {labelled("small", one): one for one in _small(workload).values()}
    return {**few, labelled("slice", workload): workload}


def evaluate_ahead(
    label: str,
    workload: Workload,
    device: torch.device,
    grad: bool,
    golds: Golds,
    definitions: Definitions = DEFINITIONS,
) -> None:
    """Evaluate on the CPU one of what :func:`compared` lists, for another process to compare with.

    Args:
        label: of it.
        workload: its part.
        device: where the call will be timed: each kind of device draws inputs of its own.
        grad: whether gradients will be compared too.
        golds: have a folder.
        definitions: what is right.
    """
    problem = workload.make(device, grad)
    if label == labelled("slice", workload):
        golds.leave(label, slice_of(problem), definitions[1])
    else:
        golds.leave(label, problem, definitions[0])


def small(
    workload: Workload,
    timed: Problem,
    function: Function,
    golds: Golds,
    definitions: Definitions = DEFINITIONS,
    lengths: tuple[int, ...] = LENGTHS,
) -> Verdict:
    """Compare small calls."""
    errors, failures, bound = dict[str, float](), list[str](), 0.0
    for case, few in _small(workload, lengths).items():
        problem = few.make(timed.device, bool(timed.trained))
        right = golds.small(few, problem, definitions[0])
        answers = differentiated(problem, function, right.cotangents)
        found = {n: measure.error(problem, n, x, right) for n, x in _judged(problem, answers)}
        errors[case], bound = max(found.values()), max(bound, measure.bound(problem))
        failures += _failures(case, found, measure.bound(problem))
    return Verdict(errors, bound, "; ".join(failures))


def sliced_call(
    workload: Workload,
    timed: Problem,
    function: Function,
    golds: Golds,
    definitions: Definitions = DEFINITIONS,
) -> Verdict:
    """Compare the last row and head of the timed call."""
    part = slice_of(timed)
    right = golds.slice(workload, part, definitions[1])
    answers = differentiated(timed, function, _spread(timed, function, right.cotangents))
    own = {n: x for n, x in _judged(timed, answers) if not _summed(timed, n)}
    found = {n: measure.error(part, n, sliced(timed, n, x), right) for n, x in own.items()}
    bound = measure.bound(part)
    return Verdict(
        {"slice": max(found.values())}, bound, "; ".join(_failures("slice", found, bound))
    )


def differentiated(
    problem: Problem, function: Function, cotangents: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Outputs and, if anything is trained, the gradients under these cotangents."""
    with torch.set_grad_enabled(bool(problem.trained)):
        outputs = function(problem)
    return {**outputs, **measure.gradients(problem, outputs, cotangents)}


def _small(workload: Workload, lengths: tuple[int, ...] = LENGTHS) -> dict[str, Workload]:
    """Few tokens and heads, with keys and values of the timed size."""
    group = workload.sizes.get("HV", workload.sizes["H"]) // workload.sizes["H"]
    heads = {axis: 2 * (group if axis == "HV" else 1) for axis in ("H", "HV")}
    sizes = {axis: size for axis, size in heads.items() if axis in workload.sizes}
    if workload.recipe.variant == "decode":
        return {"small": workload.resized({**sizes, "B": 2, "T": 1}, None)}
    found = {"dense": workload.resized({**sizes, "B": 2, "T": SMALL_TOKENS}, None)}
    if workload.recipe.packs:
        packed = {**sizes, "B": 1, "T": SMALL_TOKENS}
        found["packed"] = workload.resized(packed, lengths)
    return found


def _spread(
    timed: Problem, function: Function, cotangents: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Cotangents of the whole call: the slice's in the slice, something else around it."""
    if not timed.trained:
        return {}
    with torch.no_grad():
        outputs = function(timed)
    whole = {}
    for name, output in outputs.items():
        whole[name] = torch.randn_like(output)
        sliced(timed, name, whole[name]).copy_(cotangents[name])
    return whole


def _judged(problem: Problem, answers: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """All but gradients of one number a head: a root mean square of one means nothing."""
    single = {
        f"d {spec.name}"
        for spec in problem.contract.inputs
        if measure.BLOCK_AXES.issuperset(spec.axes)
    }
    return [(name, x) for name, x in answers.items() if name not in single]


def _summed(problem: Problem, name: str) -> bool:
    """True for the gradient of a parameter, to which every row of a batch adds."""
    specs = (spec for spec in problem.contract.inputs if f"d {spec.name}" == name)
    per_row = any({"B", "N"}.intersection(spec.axes) for spec in specs)
    return name.startswith("d ") and not per_row and problem.present["q"].shape[0] > 1


def _failures(case: str, found: Mapping[str, float], bound: float) -> list[str]:
    return [f"{case} {name} {e:.3g} > {bound:g}" for name, e in found.items() if not e <= bound]
