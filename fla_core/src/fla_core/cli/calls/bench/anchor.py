"""Torch's own softmax attention at the same shapes: what every figure can be held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fla_core.cli.calls.bench.providers import (
    ANCHOR,
    Absent,
    Provider,
    provider,
    provider_or_absent,
)
from fla_core.cli.calls.bench.recipes import Recipe
from fla_core.cli.calls.problem import Problem

NAME = "softmax_attention"
RECIPE = Recipe("chunk_linear_attn", "softmax", keywords={"normalize": False}, packs=False)
"""Linear attention has the same tensors; what is computed of them is another thing."""

ROWS = 512
"""Queries whose weights the definition holds at once."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """The provider; it takes the recipe above and no other."""

    name: str = ANCHOR
    version: str = torch.__version__
    backend: None = None
    ours: bool = False

    def function(self, recipe: Recipe, problem: Problem) -> Callable[[Problem], dict[str, Any]]:
        """A function of any such problem."""
        return lambda given: {"o": attention(**given.present)}

    def bound(self, recipe: Recipe, problem: Problem) -> Callable[[], Any]:
        """The call on one problem."""
        return lambda: attention(**problem.present)

    def shown(self, recipe: Recipe) -> str:
        """What stands for the implementation."""
        return f"torch {self.version}"

    @property
    def definitions(self) -> tuple[Any, Any]:
        """What is right, of a small call and of a slice of a large one."""
        return by_definition, by_definition


def find(name: str, backend: str | None = None) -> Provider | Anchor:
    """The provider of a name, the anchor among them.

    Raises:
        ContractError: there is none.
    """
    return Anchor() if name == ANCHOR else provider(name, backend)


def find_all(names: Sequence[str], backend: str | None = None) -> list[Provider | Absent]:
    """The providers of some names without the anchor, which is timed in any case.

    Raises:
        ContractError: none of them can be imported, so that there is nothing to time.
    """
    found = [provider_or_absent(n, backend) for n in dict.fromkeys(names) if n != ANCHOR]
    if found and all(isinstance(one, Absent) for one in found):
        provider(found[0].name, backend)
    return found


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention ``[B, T, H, D]``."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def by_definition(problem: Problem, tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """The same, with its weights written out, some rows at a time."""
    q, k, v = (tensors[name] for name in ("q", "k", "v"))
    assert q is not None
    assert k is not None
    assert v is not None
    starts = range(0, q.shape[1], ROWS)
    parts = [checkpoint(_rows, q, k, v, start, use_reentrant=False) for start in starts]
    return {"o": torch.cat(parts, dim=1)}


def _rows(q: Tensor, k: Tensor, v: Tensor, start: int) -> Tensor:
    q = q[:, start : start + ROWS]
    end = start + q.shape[1]
    scores = torch.einsum("bihd,bjhd->bhij", q, k[:, :end]) * q.shape[-1] ** -0.5
    later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(start + 1)
    weights = scores.masked_fill(later, float("-inf")).softmax(-1)
    return torch.einsum("bhij,bjhd->bihd", weights, v[:, :end])
