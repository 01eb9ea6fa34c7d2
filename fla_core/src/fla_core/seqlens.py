"""Packed sequences: where each begins and ends, on the device and, once known, on the host."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

_CACHE_SIZE = 64
_cache: dict[int, tuple[weakref.ref[Tensor], int, SeqLens]] = {}


class SeqLens:
    """``cu_seqlens`` of a packed call: N sequences in one row of T tokens.

    Attributes:
        device: the boundaries ``[N+1]``, int32 or int64, where the kernels run.
        count: N.
        checked_length: T for which the boundaries were found valid; -1 before.
    """

    __slots__ = ("_bounds", "_tables", "checked_length", "count", "device")

    def __init__(self, device: Tensor, bounds: tuple[int, ...] | None = None) -> None:
        self.device = device
        self.count = device.shape[0] - 1
        self.checked_length = -1
        self._bounds = bounds
        self._tables: dict[int, Tensor] = {}

    @property
    def known(self) -> bool:
        """True when the boundaries are on the host already."""
        return self._bounds is not None

    @property
    def bounds(self) -> tuple[int, ...]:
        """Boundaries on the host; copied from the device if they are not known yet."""
        if self._bounds is None:
            self._bounds = tuple(self.device.tolist())
        return self._bounds

    def chunk_table(self, chunk_size: int) -> Tensor:
        """Return ``[NT, 2]`` (sequence, chunk inside the sequence) on the device, built once."""
        table = self._tables.get(chunk_size)
        if table is None:
            # It outlives the call, so it must not be an inference tensor.
            with torch.inference_mode(False):
                table = chunk_table(self.bounds, chunk_size, self.device)
            self._tables[chunk_size] = table
        return table


def cached_seqlens(cu_seqlens: Tensor, host_copy: Tensor | None = None) -> SeqLens:
    """Return the SeqLens of a boundaries tensor, the same one until the tensor changes.

    Recognised by identity and version, so that packing metadata costs one host copy a batch, not
    one a layer. Tensors made in inference mode carry no version and are read anew each time.
    """
    if cu_seqlens.is_inference():
        return SeqLens(cu_seqlens, _tuple_of(host_copy))
    key = id(cu_seqlens)
    entry = _cache.get(key)
    if entry is not None and entry[0]() is cu_seqlens and entry[1] == cu_seqlens._version:
        return entry[2]
    # The cached object keeps an alias: holding the tensor itself would keep it alive for ever. Its
    # entry goes with the tensor, or the tables of 64 past batches would stay on the device.
    seqlens = SeqLens(cu_seqlens.detach(), _tuple_of(host_copy))
    if len(_cache) >= _CACHE_SIZE:
        _cache.clear()
    _cache[key] = (weakref.ref(cu_seqlens, _forget(key)), cu_seqlens._version, seqlens)
    return seqlens


def _forget(key: int) -> Callable[[object], None]:
    def forget(gone: object) -> None:
        entry = _cache.get(key)
        if entry is not None and entry[0] is gone:
            _cache.pop(key, None)

    return forget


def _tuple_of(host_copy: Tensor | None) -> tuple[int, ...] | None:
    return None if host_copy is None else tuple(host_copy.tolist())


def chunk_table(bounds: tuple[int, ...], chunk_size: int, like: Tensor) -> Tensor:
    """Return ``[NT, 2]`` (sequence, chunk inside the sequence) for boundaries on the host."""
    # On the host by name: the caller may have set another default device.
    cu = torch.tensor(bounds, dtype=torch.int64, device="cpu")
    counts = (cu.diff() + chunk_size - 1) // chunk_size
    sequence = torch.repeat_interleave(torch.arange(len(counts), device="cpu"), counts)
    first = counts.cumsum(0) - counts
    inside = torch.arange(int(counts.sum()), device="cpu") - first[sequence]
    return torch.stack([sequence, inside], dim=1).to(like.device, like.dtype)
