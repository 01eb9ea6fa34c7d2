"""How far an answer is from the oracle, in units of what rounding the inputs does to the oracle.

::

    unit(S)  = max( rms_S of (oracle(inputs rounded once more) - oracle),  u rms_S(oracle) )
    error    = max over S of  rms_S(answer - oracle) / unit(S)

S is one (sequence or row, head) block of an output or a gradient, u half a unit in the last place
of its dtype. «Rounded once more» multiplies each input by 1 + u x, x uniform in [-1, 1]. An error
of 1 is thus what the dtype itself costs; the contract says how much an implementation may cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fla_core.cli.calls.problem import CPU, Problem
from fla_core.reference.oracle import oracle

PERTURBATIONS = 2
BLOCK_AXES = frozenset({"B", "N", "H", "HV"})

Named = dict[str, Tensor]
Evaluate = Callable[[Problem, Mapping[str, Tensor | None]], Named]


@dataclass(frozen=True, slots=True)
class Gold:
    """Values and gradients by definition, in float64, and their units block by block."""

    values: Named
    units: Named
    cotangents: Named


def bound(problem: Problem) -> float:
    """How many units an implementation may be off.

    16-bit inputs are summed in float32, whose own errors do not show: the contract's budget holds
    as it is. Where inputs are as precise as the sums, a sum of n terms rounds n times and its error
    grows as the square root of n.
    """
    q, v = problem.present["q"], problem.present["v"]
    budget = problem.contract.numerics.block
    if q.element_size() <= 2:
        return budget
    return round(budget * math.sqrt(max(*q.shape[1:], *v.shape[1:])), 1)


def half_ulp(dtype: torch.dtype) -> float:
    """Largest relative error of rounding to a dtype."""
    return torch.finfo(dtype).eps / 2


def by_token(problem: Problem, tensors: Mapping[str, Tensor | None]) -> Named:
    """The outputs by definition: the recurrence, token by token."""
    return oracle(problem.call(tensors, problem.plan("reference").features))


def by_chunks(problem: Problem, tensors: Mapping[str, Tensor | None]) -> Named:
    """The outputs of the chunked reference: the same function, and fast where T is large."""
    q = tensors["q"]
    assert q is not None
    return replace(problem, tensors=tensors, device=q.device).run("reference")


def gold(
    problem: Problem,
    evaluate: Evaluate = by_token,
    device: torch.device = CPU,
    perturbations: int = PERTURBATIONS,
) -> Gold:
    """Evaluate the definition on the problem's inputs and on perturbed ones, on a device.

    Two perturbations tell the unit of a block of many numbers; one of a single number, such as a
    head's ``A_log``, needs more.
    """
    generator = torch.Generator(device).manual_seed(1)
    exact = {name: x.detach().to(device).double() for name, x in problem.present.items()}
    dtypes = {name: tensor.dtype for name, tensor in problem.present.items()}
    cotangents: Named = {}
    values = _differentiated(problem, evaluate, exact, cotangents, generator)
    squares = {name: torch.zeros((), device=device) for name in values}
    for _ in range(perturbations):
        moved = {n: x * (1 + half_ulp(dtypes[n]) * _noise(x, generator)) for n, x in exact.items()}
        answers = _differentiated(problem, evaluate, moved, cotangents, generator)
        for name, value in answers.items():
            shift = block_rms(problem, name, value - values[name]) ** 2
            squares[name] = squares[name] + shift / perturbations
    units = {}
    for name, value in values.items():
        floor = half_ulp(answer_dtype(problem, name)) * block_rms(problem, name, value)
        units[name] = torch.maximum(squares[name].sqrt(), floor)
    return Gold(values, units, cotangents)


def answer_dtype(problem: Problem, name: str) -> torch.dtype:
    """The dtype in which an output, or the gradient ``d NAME``, comes back."""
    q = problem.present["q"]
    if name.startswith("d "):
        return problem.present[name[2:]].dtype
    spec = next(spec for spec in problem.contract.outputs if spec.name == name)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return wide if spec.dtype == "state" else q.dtype


def block_rms(problem: Problem, name: str, x: Tensor) -> Tensor:
    """Root mean square of each block of an output or gradient."""
    specs = (*problem.contract.inputs, *problem.contract.outputs)
    bare = name.removeprefix("d ")
    spec = next(spec for spec in specs if spec.name == bare)
    inner = [i for i, letter in enumerate(spec.axes) if letter not in BLOCK_AXES]
    return x.square().mean(dim=inner).sqrt() if inner else x.abs()


def error(problem: Problem, name: str, answer: Tensor, right: Gold) -> float:
    """The largest error over all blocks, in units; infinite for values that are not finite."""
    value = right.values[name]
    difference = answer.detach().to(value.device).double() - value
    if not torch.isfinite(difference).all():
        return float("inf")
    rms, unit = block_rms(problem, name, difference), right.units[name]
    ratio = torch.where(rms == 0, torch.zeros_like(rms), rms / unit)
    return float(ratio.max()) if ratio.numel() else 0.0


def gradients(problem: Problem, outputs: Named, cotangents: Mapping[str, Tensor]) -> Named:
    """Gradients of the trained inputs under the given cotangents, named ``d q`` and so on."""
    inputs = {name: problem.present[name] for name in sorted(problem.trained)}
    if not inputs:
        return {}
    pairs = [(o, cotangents[n].to(o.device, o.dtype)) for n, o in outputs.items()]
    found: Sequence[Tensor | None] = torch.autograd.grad(
        [o for o, _ in pairs], list(inputs.values()), [c for _, c in pairs], allow_unused=True
    )
    # No path is no gradient, which the oracle knows as zero.
    filled = (
        torch.zeros_like(x) if g is None else g for x, g in zip(inputs.values(), found, strict=True)
    )
    return {f"d {name}": gradient for name, gradient in zip(inputs, filled, strict=True)}


def _differentiated(
    problem: Problem,
    evaluate: Evaluate,
    inputs: Named,
    cotangents: Named,
    generator: torch.Generator,
) -> Named:
    """Outputs and gradients; draws the cotangents if there are none yet."""
    leaves = {name: inputs[name].detach().requires_grad_() for name in sorted(problem.trained)}
    tensors = {name: leaves.get(name, inputs.get(name)) for name in problem.tensors}
    outputs = evaluate(problem, tensors)
    for name, output in outputs.items():
        if name not in cotangents:
            drawn = torch.randn(
                output.shape, generator=generator, dtype=torch.float64, device=output.device
            )
            # Representable in the dtype of the output, so that both sides pull back the same.
            cotangents[name] = drawn.to(answer_dtype(problem, name)).double()
    values = {name: output.detach() for name, output in outputs.items()}
    if not leaves:
        return values
    pulled = [cotangents[name] for name in outputs]
    found = torch.autograd.grad(list(outputs.values()), list(leaves.values()), pulled)
    return values | {f"d {name}": g for name, g in zip(leaves, found, strict=True)}


def _noise(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device) * 2 - 1
