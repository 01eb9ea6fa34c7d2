"""Compare two runs that should agree: to the bit, or to what reordered sums may change.

Two orders of the same sum differ by roundings, so the tolerance is a number of half units in the
last place of the call's dtype, relative to the root mean square: 8 for 16-bit dtypes, where one
rounding of an intermediate is a whole unit, and 64 for wider ones, where sums of a few hundred
terms dominate. What laws look for (a lost state, a neighbour's token) is tens of per cent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fla_core.dtypes import dtype_name

_UNITS = {"bfloat16": 8, "float16": 8, "float32": 64, "float64": 64}
_ROW = 4
"""How much further a single row (the last dimension) may be off."""

_FLOOR = 1e-6
"""Scale below which a tensor counts as zero: gradients that cancel exactly leave dust."""


def tolerance(dtype: str) -> float:
    """Largest relative RMS difference between two correct results for inputs of this dtype."""
    return _UNITS[dtype] * float(torch.finfo(getattr(torch, dtype)).eps) / 2


def difference(got: Tensor, want: Tensor, dtype: str, exact: bool = False) -> str:
    """Say how two tensors differ; ``""`` when they agree.

    Args:
        got: result to judge.
        want: what it should equal.
        dtype: dtype name of the call's q.
        exact: compare bits (zeros of either sign are equal, and so are NaNs).
    """
    if got.shape != want.shape:
        return f"has shape {list(got.shape)} instead of {list(want.shape)}"
    if got.dtype != want.dtype:
        return f"has dtype {dtype_name(got.dtype)} instead of {dtype_name(want.dtype)}"
    if not want.numel():
        return ""
    wrong = (got != want) & ~(got.isnan() & want.isnan())
    if exact or not bool((got.isfinite() | ~want.isfinite()).all()):
        odd = wrong if exact else ~got.isfinite() & want.isfinite()
        return _first(got, want, odd)
    if not bool(wrong.any()):
        return ""
    return _off(got, want, tolerance(dtype))


def _off(got: Tensor, want: Tensor, allowed: float) -> str:
    usable = want.isfinite()
    want = torch.where(usable, want, 0).double()
    error = torch.where(usable, got.double() - want, 0)
    scale = max(_rms(want), _FLOOR)
    if _rms(error) > allowed * scale:
        size = _rms(error) / scale
        return f"{_first(got, want, error.abs() == error.abs().max())}, off by {size:.3g} RMS"
    rows = error.square().mean(-1).sqrt()
    limit = _ROW * allowed * want.square().mean(-1).sqrt().clamp(min=scale)
    if bool((rows > limit).any()):
        worst = rows == rows.max()
        mask = worst.unsqueeze(-1).expand_as(error)
        return f"{_first(got, want, mask)}, a row off by {float(rows.max()) / scale:.3g}"
    return ""


def _rms(tensor: Tensor) -> float:
    return float(tensor.square().mean().sqrt())


def _first(got: Tensor, want: Tensor, mask: Tensor) -> str:
    where = mask.nonzero()
    if not len(where):
        return ""
    index = tuple(where[0].tolist())
    share = f" ({len(where)} of {mask.numel()} elements)" if len(where) > 1 else ""
    return f"is {float(got[index]):.6g} at {list(index)} instead of {float(want[index]):.6g}{share}"


def disagreement(
    got: Mapping[str, Tensor],
    want: Mapping[str, Tensor],
    dtype: str,
    exact: bool = False,
    names: Iterable[str] | None = None,
) -> str | None:
    """The first difference between two sets of results by name, or None.

    Args:
        got, want: results by name, outputs and gradients (``dq``).
        dtype: dtype name of the call's q.
        exact: compare bits.
        names: what to compare; everything in ``want`` by default.
    """
    for name in want if names is None else names:
        if name not in got:
            return f"{name} is missing"
        if found := difference(got[name], want[name], dtype, exact):
            return f"{name} {found}"
    return None
