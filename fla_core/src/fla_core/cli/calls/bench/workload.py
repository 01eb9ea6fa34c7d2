"""A timed call: its tensors, the words in which a provider is told of them, its definition."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fla_core import ops
from fla_core.cli.calls.bench.recipes import KEYWORDS, Recipe, implied_decay, sizes_text
from fla_core.cli.calls.problem import CPU, Problem, make


@dataclass(frozen=True, slots=True)
class Workload:
    """What is timed.

    Attributes:
        recipe: how the operator is called.
        sizes: ``B T H HV K V``.
        lengths: of packed sequences, None for a dense batch.
        dtype: of q, k and v.
    """

    recipe: Recipe
    sizes: Mapping[str, int]
    lengths: tuple[int, ...] | None
    dtype: torch.dtype

    @property
    def text(self) -> str:
        """The shape."""
        return sizes_text(self.sizes, self.lengths)

    @property
    def bounds(self) -> tuple[int, ...] | None:
        """Boundaries of packed sequences."""
        return None if self.lengths is None else (0, *accumulate(self.lengths))

    def resized(self, sizes: Mapping[str, int], lengths: tuple[int, ...] | None) -> Workload:
        """The same call at another shape."""
        return replace(self, sizes={**self.sizes, **sizes}, lengths=lengths)

    def make(self, device: torch.device, grad: bool) -> Problem:
        """Draw the tensors, on the device itself: large ones take the host seconds."""
        count = self.sizes["B"] if self.lengths is None else len(self.lengths)
        problem = make(
            self.recipe.operator,
            {**self.sizes, "N": count},
            self.dtype,
            device,
            optional=self.recipe.inputs,
            flags=self.recipe.flags,
            bounds=self.bounds,
            options=self.recipe.options,
            grad=grad,
            drawn_on=device,
        )
        tensors = dict(problem.tensors)
        if tensors.get("g_gamma") is not None:
            tensors["g_gamma"] = self._decay(problem)
        if "normalize" in self.recipe.flags:
            # A feature map: normalisers must stay away from zero.
            for name in ("q", "k"):
                x = problem.present[name].detach()
                tensors[name] = F.softplus(x).requires_grad_(grad)
        return replace(problem, tensors=tensors)

    def _decay(self, problem: Problem) -> Tensor:
        drawn = problem.present["g_gamma"]
        implied = implied_decay(self.recipe, self.sizes["H"], drawn)
        return drawn if implied is None else implied


def keywords(recipe: Recipe, problem: Problem) -> dict[str, Any]:
    """What a public operator is called with: tensors, boundaries, switches and options by name.

    Arguments that the name implies, such as retention's decays, are not among them.
    """
    takes = inspect.signature(getattr(ops, recipe.operator)).parameters
    aliases = problem.operator.aliases
    given: dict[str, Any] = {aliases.get(n, n): t for n, t in problem.present.items()}
    if (bounds := problem.cu_seqlens) is not None:
        given["cu_seqlens"] = bounds.long()
    given |= {KEYWORDS[flag]: True for flag in sorted(recipe.flags) if flag in KEYWORDS}
    return {n: x for n, x in given.items() if n in takes} | {**recipe.options, **recipe.keywords}


def outputs_of(result: Any, names: Sequence[str]) -> dict[str, Tensor]:
    """The outputs of a public operator by their names in the contract.

    Raises:
        TypeError: what came back is not as many tensors as there are names.
    """
    flat = list(_tensors(result))
    if len(flat) != len(names):
        raise TypeError(f"expected the outputs {', '.join(names)}, got {len(flat)} tensors")
    return dict(zip(names, flat, strict=True))


def _tensors(result: Any) -> Any:
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, tuple | list):
        for part in result:
            yield from _tensors(part)


def slice_of(problem: Problem) -> Problem:
    """The last row and the last key head of a problem.

    Rows and key heads do not know of each other, so a slice of the whole call's answers is right
    exactly if it is the answer of the slice. It stays on GPUs that compute in float64.
    """
    where = problem.device if problem.device.type == "cuda" else CPU
    tensors = dict(problem.tensors)
    for name, x in problem.present.items():
        tensors[name] = sliced(problem, name, x).to(where).requires_grad_(x.requires_grad)
    return replace(problem, tensors=tensors, device=where)


def sliced(problem: Problem, name: str, x: Tensor) -> Tensor:
    """The part of an argument, output or gradient ``d NAME`` that belongs to :func:`slice_of`."""
    specs = (*problem.contract.inputs, *problem.contract.outputs)
    spec = next(spec for spec in specs if spec.name == name.removeprefix("d "))
    heads = problem.present["q"].shape[2]
    x = x.detach()
    for axis, letter in enumerate(spec.axes):
        # Packed sequences lie in one row, which is kept with all their states.
        if letter == "B" or (letter == "N" and problem.bounds is None):
            x = x.narrow(axis, x.shape[axis] - 1, 1)
        elif letter in ("H", "HV", "HV*K"):
            group = x.shape[axis] // heads
            x = x.narrow(axis, x.shape[axis] - group, group)
    return x
