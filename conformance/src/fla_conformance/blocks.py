"""Over which elements of a tensor an error is averaged.

A *block* is everything that belongs to one sequence (or batch row) and one head; a *row* one token
and one head, of a state one key channel. Parameters (``A_log``, ``dt_bias``, ``g_gamma``) are one
block, their gradients being sums over all tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

_WHOSE = frozenset({"B", "N", "H", "HV"})


@dataclass(frozen=True, slots=True)
class Layout:
    """Axis letters of a tensor, and the boundaries of packed sequences along its T axis."""

    letters: tuple[str, ...]
    bounds: tuple[int, ...] | None = None

    def block_mean(self, x: Tensor) -> Tensor:
        """Mean over each block; blocks without elements count as zero."""
        if not self._is_packed:
            return self._mean(x)
        parts = [self._mean(part) for part in self._sequences(x)]
        return torch.stack(parts) if parts else x.new_zeros(0)

    def matrices(self, x: Tensor) -> list[Tensor]:
        """The blocks as matrices ``[..., rows, columns]``; none where a block has one axis only."""
        axes = [axis for axis, letter in enumerate(self.letters) if letter not in _WHOSE]
        if not self.is_indexed or len(axes) < 2:
            return []
        return [part.movedim(axes[-2:], (-2, -1)) for part in self._sequences(x) if part.numel()]

    def few_rows(self, x: Tensor) -> Tensor:
        """Rows in each block, for every block; infinitely many where their number does not count.

        It counts for states, whose rows are sums over all tokens, and where a row is one number.
        """
        named = list(zip(self.letters, x.shape, strict=True))
        if {"K", "V"}.issubset(self.letters):
            return _scalar(math.prod(n for letter, n in named if letter not in _WHOSE | {"V"}), x)
        if not (self.is_indexed and self.letters[-1] in ("H", "HV")):
            return _scalar(math.inf, x)
        if not self._is_packed:
            return _scalar(math.prod(n for letter, n in named if letter not in _WHOSE), x)
        return x.new_tensor(self._lengths).view(-1, *[1] * (x.dim() - 1))

    @property
    def _is_packed(self) -> bool:
        return "T" in self.letters and self.bounds is not None

    def _sequences(self, x: Tensor) -> Sequence[Tensor]:
        if not self._is_packed:
            return [x]
        return x.split_with_sizes(self._lengths, self.letters.index("T"))

    @property
    def _lengths(self) -> list[int]:
        return [end - begin for begin, end in pairwise(self.bounds or ())]

    def _mean(self, x: Tensor) -> Tensor:
        over = [axis for axis, letter in enumerate(self.letters) if letter not in _WHOSE]
        return mean(x, over) if self.is_indexed else mean(x, list(range(x.dim())))

    @property
    def is_indexed(self) -> bool:
        """False for parameters, which belong to no sequence."""
        return bool({"B", "N"}.intersection(self.letters))

    def row_mean(self, x: Tensor) -> Tensor:
        """Mean over each row; a scalar of a token and head is a row of its own."""
        if not self.is_indexed:
            return self._mean(x)
        return x if self.letters[-1] in ("H", "HV") else mean(x, [x.dim() - 1])

    def to_rows(self, blocks: Tensor, rows: Tensor) -> Tensor:
        """For each row the value of its block."""
        if not self.is_indexed or not rows.numel():
            return blocks.expand_as(rows) if not self.is_indexed else rows
        if self._is_packed:
            lengths = torch.tensor(self._lengths, dtype=torch.long)
            return blocks.repeat_interleave(lengths, 0).movedim(0, self.letters.index("T"))
        for axis, letter in enumerate(self.letters[: rows.dim()]):
            if letter not in _WHOSE:
                blocks = blocks.unsqueeze(axis)
        return blocks.expand_as(rows)


def _scalar(value: float, like: Tensor) -> Tensor:
    return like.new_tensor(value, dtype=torch.float64)


def mean(x: Tensor, axes: list[int]) -> Tensor:
    """Mean over some axes; zero, not NaN, where there is nothing."""
    if not axes:
        return x
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return x.sum(axes) / max(count, 1)
