"""Outputs and gradients of a case, and how far rounding may take them from the gold values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from op_cases import Case, gold_call, with_strides
from torch import Tensor

from fla_core.contracts import CONTRACTS

Named = Mapping[str, Tensor]
Function = Callable[[Case, Named], dict[str, Tensor]]

#: Float64 results agree to this, relative to the largest entry of a tensor.
EXACT = 1e-10


def evaluate(
    function: Function,
    case: Case,
    inputs: Named,
    through: Iterable[str] | None = None,
    needs: Iterable[str] | None = None,
    weights: Named | None = None,
) -> dict[str, Tensor]:
    """Outputs by name and gradients as ``dNAME``.

    Args:
        function: maps a case and its tensors to outputs.
        case, inputs: the call.
        through: outputs that get a gradient, all if None.
        needs: inputs whose gradient is taken, all if None.
        weights: gradients of outputs; random ones if None.
    """
    needs = list(inputs if needs is None else needs)
    leaves = {n: x.detach().requires_grad_(n in needs) for n, x in inputs.items()}
    outputs = function(case, leaves)
    found = {name: x.detach() for name, x in outputs.items()}
    weights = make_weights(case, outputs) if weights is None else weights
    through = [n for n in outputs if (through is None or n in through) and outputs[n].requires_grad]
    if needs and through:
        seeds = [weights[n].to(outputs[n].dtype) for n in through]
        if case.strided:
            seeds = [with_strides(seed) for seed in seeds]
        grads = torch.autograd.grad(
            [outputs[n] for n in through], [leaves[n] for n in needs], seeds, allow_unused=True
        )
        for name, grad in zip(needs, grads, strict=True):
            found[f"d{name}"] = torch.zeros_like(leaves[name]) if grad is None else grad
    return found


def make_weights(case: Case, outputs: Named) -> dict[str, Tensor]:
    """Random gradients of the outputs, in their dtypes."""
    rng = torch.Generator().manual_seed(case.seed + 1)
    return {
        name: torch.randn(x.shape, generator=rng, dtype=torch.float64).to(x.dtype)
        for name, x in sorted(outputs.items())
    }


def assert_exact(got: Named, gold: Named, tolerance: float = EXACT) -> None:
    """Same names, shapes and, to rounding in float64, values."""
    assert got.keys() == gold.keys()
    for name, want in gold.items():
        assert got[name].shape == want.shape, name
        assert got[name].isfinite().all(), name
        size = want.abs().max().item() if want.numel() else 0.0
        error = (got[name] - want).abs().max().item() if want.numel() else 0.0
        assert error <= tolerance * max(size, 1.0), f"{name}: off by {error:.2e} of {size:.2e}"


def assert_rounded(case: Case, inputs: Named, got: Named, weights: Named) -> None:
    """Compare with gold values in units of what rounding does to them.

    Every input is known to half a unit of its last place: four random perturbations of that size
    show how much the answer moves. Accumulating in float32 moves it too: so does the recurrence
    itself when run in float32. The contract allows ``block`` times the largest of these moves, and
    one rounding of the result to its dtype.
    """
    gold, *others = [
        evaluate(gold_call, case, version, weights={n: x.double() for n, x in weights.items()})
        for version in _versions(inputs)
    ]
    assert got.keys() == gold.keys()
    block = CONTRACTS[case.contract].numerics.block
    for name, want in gold.items():
        assert got[name].shape == want.shape, name
        assert got[name].isfinite().all(), name
        if want.numel():
            moves = max((other[name].double() - want).abs().max().item() for other in others)
            rounding = torch.finfo(got[name].dtype).eps / 2 * want.abs().max().item()
            error = (got[name].double() - want).abs().max().item()
            allowed = block * moves + rounding
            assert error <= allowed, f"{name}: off by {error:.2e}, allowed {allowed:.2e}"


def _versions(inputs: Named) -> Iterator[dict[str, Tensor]]:
    """The inputs in float64, the same in float32, and four times moved within their rounding."""
    yield {name: x.double() for name, x in inputs.items()}
    yield {name: x.float() for name, x in inputs.items()}
    for seed in range(4):
        yield {name: nudged(x.double(), x.dtype, seed) for name, x in inputs.items()}


def nudged(x: Tensor, dtype: torch.dtype, seed: int) -> Tensor:
    """Each entry moved at random within what rounding to ``dtype`` leaves open."""
    rng = torch.Generator().manual_seed(seed)
    noise = 2 * torch.rand(x.shape, generator=rng, dtype=torch.float64) - 1
    return x * (1 + torch.finfo(dtype).eps / 2 * noise)
