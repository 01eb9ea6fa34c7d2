"""Packed sequences: where each begins and ends, known on the device and, when possible, on the host."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

_HOST_CACHE_SIZE = 64
_host_cache: dict[int, tuple[weakref.ref[Tensor], int, tuple[int, ...]]] = {}


class SeqLens:
    """``cu_seqlens`` of a packed call: N sequences in one row of T tokens.

    Attributes:
        device: the boundaries ``[N+1]``, int32 or int64, where the kernels run.
        count: N.
    """

    __slots__ = ("_bounds", "_tables", "count", "device")

    def __init__(self, device: Tensor, bounds: tuple[int, ...] | None = None) -> None:
        self.device = device
        self.count = int(device.shape[0]) - 1
        self._bounds = bounds
        self._tables: dict[int, Tensor] = {}

    @property
    def known(self) -> bool:
        """True when the boundaries are known on the host without a copy."""
        return self._bounds is not None

    @property
    def bounds(self) -> tuple[int, ...]:
        """Boundaries on the host; copies them from the device once if they are not known yet."""
        if self._bounds is None:
            self._bounds = host_bounds(self.device)
        return self._bounds

    def chunk_table(self, chunk_size: int) -> Tensor:
        """Return ``[NT, 2]`` (sequence, chunk inside the sequence) on the device, built once."""
        table = self._tables.get(chunk_size)
        if table is None:
            table = self._tables[chunk_size] = chunk_table(self.bounds, chunk_size, self.device)
        return table


def host_bounds(cu_seqlens: Tensor) -> tuple[int, ...]:
    """Return the boundaries as Python ints, cached by the tensor's identity and version."""
    if cu_seqlens.is_inference():
        return tuple(cu_seqlens.tolist())
    key = id(cu_seqlens)
    entry = _host_cache.get(key)
    if entry is not None and entry[0]() is cu_seqlens and entry[1] == cu_seqlens._version:
        return entry[2]
    bounds = tuple(cu_seqlens.tolist())
    if len(_host_cache) >= _HOST_CACHE_SIZE:
        _host_cache.clear()
    _host_cache[key] = (weakref.ref(cu_seqlens), cu_seqlens._version, bounds)
    return bounds


def chunk_table(bounds: tuple[int, ...], chunk_size: int, like: Tensor) -> Tensor:
    """Return ``[NT, 2]`` (sequence, chunk inside the sequence) for boundaries on the host."""
    cu = torch.tensor(bounds, dtype=torch.int64)
    counts = (cu.diff() + chunk_size - 1) // chunk_size
    sequence = torch.repeat_interleave(torch.arange(len(counts)), counts)
    first = counts.cumsum(0) - counts
    inside = torch.arange(int(counts.sum())) - first[sequence]
    return torch.stack([sequence, inside], dim=1).to(like.device, like.dtype)
