"""By which factor a whole tensor is too large or too small.

An error that is the same factor everywhere does not average out as roundings do, so the *gain*,
``<answer, gold> / <gold, gold> - 1`` over a whole tensor, has a unit of its own: what the moved
inputs make of it, what independent errors of one unit leave of it by chance, and a part of one
rounding for each. Of errors x_i xi_i of a tensor x, xi independent, that chance is
``sqrt(sum x^4) / sum x^2``. But the errors of products lie along their factors: what is wrong with
an e_t reaches a state ``sum_t k_t e_t^T`` along k_t. Where all keys are nearly parallel, that makes
V independent errors, not K V. So the sum is taken over elements, and along the principal directions
of each block, and the larger counts. It takes the directions of the shorter side: those of the
longer one follow whatever is in the block. Of n by N independent elements, n <= N, the latter is
larger by ``sqrt(1 + n / N)``, of a block of rank one by up to sqrt(n).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fla_conformance.blocks import Layout


def gain(error: Tensor, value: Tensor) -> Tensor:
    """By which factor an error changes the size of a value, of each along the first axis."""
    flat = value.flatten()
    if not flat.numel():
        return flat
    return error.reshape(-1, flat.numel()) @ flat / flat.square().sum().clamp_min(1e-300)


def gain_unit(
    value: Tensor, moves: Tensor, block: Tensor, layout: Layout, step: float, least: float
) -> float:
    """The unit of a gain.

    Args:
        value: gold.
        moves: what moved inputs make of it, less gold, along a further first axis.
        block: unit of each block.
        layout: blocks of gold.
        step: half a unit in the last place of a constant.
        least: the smallest size of which anything is asked.
    """
    size = _rms(value)
    if not size:
        return math.inf
    spread = _rms(gain(moves, value))
    by_chance = _rms(block) / size * _chance(value / size, layout)
    # A constant may be rounded once (the scale, to the dtype of q), which no budget multiplies.
    return math.hypot(spread, by_chance, step / 4, least / size)


def _chance(value: Tensor, layout: Layout) -> float:
    """Which part of independent errors a gain keeps."""
    rotated = (_principal(matrix) for matrix in layout.matrices(value))
    fourth = max(float(value.pow(4).sum()), sum(float(x.pow(4).sum()) for x in rotated))
    return math.sqrt(fourth) / float(value.square().sum())


def _principal(matrix: Tensor) -> Tensor:
    """Matrices ``[..., rows, columns]`` along the singular vectors of their shorter side."""
    narrow = matrix if matrix.shape[-1] <= matrix.shape[-2] else matrix.mT
    vectors: Tensor = torch.linalg.eigh(narrow.mT @ narrow)[1]
    return narrow @ vectors


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt()) if x.numel() else 0.0
