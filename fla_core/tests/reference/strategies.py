"""Problems for the reference mathematics, and how two computations of one problem are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

#: Lengths on both sides of the edges of chunks of 16 and 64 tokens.
LENGTHS = (0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 129)
PACKED_LENGTHS = (0, 0, 1, 2, 15, 16, 17, 33, 63, 65)
SIZES = (1, 2, 3, 5, 8, 16)

#: What a log gate may hold at each token; None stands for an ordinary gate of -|normal|.
GATES: Mapping[str, tuple[float | None, ...]] = {
    "ordinary": (None,),
    "zero": (0.0,),
    "tiny": (-1e-6,),
    "strong": (-50.0,),
    "reset": (-1e4,),
    "reset beside tiny": (-1e4, -1e-6, -1e-6, -1e-6),
    "saturated beside zero": (-1e4, 0.0),
    "mixed": (0.0, -1e-6, -50.0, -1e4, None, None),
}


def quick(examples: int) -> settings:
    """The same examples on every run, so that a failure is always the same failure."""
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None)


@dataclass(frozen=True, slots=True)
class Problem:
    """Sizes of one call and the seed of its data; ``bounds`` as the reference takes them."""

    B: int
    T: int
    H: int
    K: int
    V: int
    bounds: tuple[int, ...] | None = None
    seed: int = 0

    @property
    def N(self) -> int:
        return self.B if self.bounds is None else len(self.bounds) - 1

    @property
    def sequences(self) -> list[tuple[int, slice]]:
        """Row and tokens of every sequence."""
        if self.bounds is None:
            return [(row, slice(0, self.T)) for row in range(self.B)]
        return [(0, slice(a, b)) for a, b in pairwise(self.bounds)]

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)


@st.composite
def problems(draw: st.DrawFn, lengths: Iterable[int] = LENGTHS) -> Problem:
    """Dense and packed problems, empty sequences and odd sizes among them."""
    heads, keys, values = (draw(st.sampled_from(x)) for x in ((1, 2), SIZES, SIZES))
    seed = draw(st.integers(0, 2**16))
    if draw(st.booleans()):
        packed = draw(st.lists(st.sampled_from(PACKED_LENGTHS), min_size=1, max_size=4))
        bounds = (0, *accumulate(packed))
        return Problem(1, bounds[-1], heads, keys, values, bounds, seed)
    rows, length = draw(st.sampled_from((1, 2))), draw(st.sampled_from(sorted(lengths)))
    return Problem(rows, length, heads, keys, values, None, seed)


gate_kinds = st.sampled_from(sorted(GATES))


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def draw_gate(generator: torch.Generator, kind: str, *shape: int) -> Tensor:
    """A log gate whose entries are drawn from ``GATES[kind]``."""
    ordinary = -normal(generator, *shape).abs()
    choices = GATES[kind]
    pick = torch.randint(len(choices), shape, generator=generator)
    levels = torch.tensor([float("nan") if c is None else c for c in choices], dtype=torch.float64)[
        pick
    ]
    return torch.where(levels.isnan(), ordinary, levels)


def decay_inputs(
    problem: Problem, gates: Mapping[str, str], *, initial_state: bool = True
) -> dict[str, Tensor]:
    """q, k, v, the gates named (g, gk, gv, each with its kind) and a state, all float64."""
    p, gen = problem, problem.generator()
    width = {"g": (), "gk": (p.K,), "gv": (p.V,)}
    inputs = {
        "q": normal(gen, p.B, p.T, p.H, p.K),
        "k": normal(gen, p.B, p.T, p.H, p.K),
        "v": normal(gen, p.B, p.T, p.H, p.V),
    }
    for name, kind in gates.items():
        inputs[name] = draw_gate(gen, kind, p.B, p.T, p.H, *width[name])
    if initial_state:
        inputs["initial_state"] = normal(gen, p.N, p.H, p.K, p.V)
    return inputs


def evaluate(
    function: Callable[..., tuple[Tensor | None, ...]],
    problem: Problem,
    inputs: Mapping[str, Tensor],
    dtype: torch.dtype = torch.float64,
    **options: object,
) -> dict[str, Tensor]:
    """Outputs and every gradient, under random gradients of both outputs."""
    weights = [x.to(dtype) for x in _output_gradients(problem)]
    return _evaluate(function, problem, inputs, *weights, options)


def magnitudes(
    function: Callable[..., tuple[Tensor | None, ...]],
    problem: Problem,
    inputs: Mapping[str, Tensor],
    **options: object,
) -> dict[str, Tensor]:
    """For each entry of `evaluate`, the sum of the absolute values of its terms.

    Rounding errors are a small multiple of the unit of rounding of this sum. Only for functions
    that multiply and add, decay being positive: then absolute inputs give absolute terms.
    """
    weights = [x.abs() for x in _output_gradients(problem)]
    positive = {name: x if name in ("g", "gk", "gv") else x.abs() for name, x in inputs.items()}
    return _evaluate(function, problem, positive, *weights, options)


def _output_gradients(problem: Problem) -> tuple[Tensor, Tensor]:
    p, gen = problem, torch.Generator().manual_seed(problem.seed + 1)
    return normal(gen, p.B, p.T, p.H, p.V), normal(gen, p.N, p.H, p.K, p.V)


def _evaluate(
    function: Callable[..., tuple[Tensor | None, ...]],
    problem: Problem,
    inputs: Mapping[str, Tensor],
    do: Tensor,
    dstate: Tensor,
    options: Mapping[str, object],
) -> dict[str, Tensor]:
    leaves = {name: x.to(do.dtype, copy=True).requires_grad_() for name, x in inputs.items()}
    o, state, *_ = function(**leaves, bounds=problem.bounds, **options)
    loss = (o * do).sum() + (state * dstate).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=problem.T == 0)
    found = {"o": o.detach(), "final_state": state.detach()}
    for (name, leaf), grad in zip(leaves.items(), grads, strict=True):
        found[f"d{name}"] = torch.zeros_like(leaf) if grad is None else grad
    return found


def worst_error(
    actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], floor: float = 1e-4
) -> tuple[float, str]:
    """Largest error relative to the largest entry of its tensor, and the tensor's name.

    Entries below ``floor`` are compared absolutely in its unit: a gradient behind a closed gate is
    zero but for rounding. A shape that differs or a NaN is an infinite error.
    """
    assert actual.keys() == expected.keys()
    worst = (0.0, "")
    for name, want in expected.items():
        got = actual[name].double()
        if got.shape != want.shape or not bool(got.isfinite().all()):
            return float("inf"), name
        if want.numel():
            scale = max(want.abs().max().item(), floor)
            worst = max(worst, ((got - want).abs().max().item() / scale, name))
    return worst
