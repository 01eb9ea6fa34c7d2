"""Packed sequences: where each begins and ends, on the device and, once known, on the host."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from fla_core.errors import UnsupportedError

_CACHE_SIZE = 64
_cache: dict[int, _Entry] = {}


class SeqLens:
    """``cu_seqlens`` of a packed call: N sequences in one row of T tokens.

    Attributes:
        device: the boundaries ``[N+1]``, int32 or int64, contiguous, where the kernels run.
        count: N.
        checked_length: T for which the boundaries were found valid; -1 before.
    """

    __slots__ = ("_bounds", "_copies", "_longest", "_tables", "checked_length", "count", "device")

    def __init__(self, device: Tensor, bounds: tuple[int, ...] | None = None) -> None:
        # Kernels walk it: a column of a table, or a minus not in memory, would mislead them.
        self.device = device.contiguous().resolve_neg()
        self.count = device.shape[0] - 1
        self.checked_length = -1
        self._bounds = bounds
        self._longest = -1
        self._tables: dict[int, Tensor] = {}
        self._copies: list[torch.cuda.Event] = []

    @property
    def known(self) -> bool:
        """True when the boundaries are on the host already."""
        return self._bounds is not None

    @property
    def bounds(self) -> tuple[int, ...]:
        """Boundaries on the host; copied from the device if they are not known yet.

        Raises:
            UnsupportedError: they are not, and a graph is being captured.
        """
        if self._bounds is None:
            if capturing(self.device):
                raise UnsupportedError(
                    "cu_seqlens",
                    "reading boundaries from the device while a CUDA graph is captured",
                    "cu_seqlens_cpu, or a call with the same tensor before the capture",
                )
            self._bounds = tuple(self.device.tolist())
        return self._bounds

    def beside(self, boundaries: Tensor) -> SeqLens:
        """The same sequences by boundaries read anew; tables are shared."""
        again = SeqLens(boundaries, self._bounds)
        again._tables = self._tables
        return again

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence; read from the host like ``bounds``."""
        if self._longest < 0:
            pairs = pairwise(self.bounds)
            self._longest = max((end - begin for begin, end in pairs), default=0)
        return self._longest

    def chunk_table(self, chunk_size: int) -> Tensor:
        """Return ``[NT, 2]`` (sequence, chunk inside the sequence) on the device, built once.

        Raises:
            UnsupportedError: it was not yet, and a graph is being captured.
        """
        table = self._tables.get(chunk_size)
        if table is None:
            table = self._tables[chunk_size] = self._built(chunk_size)
        elif self._copies:
            self._await_copies()
        return table

    def _built(self, chunk_size: int) -> Tensor:
        if capturing(self.device):
            # Replays would copy from memory of the host that by then holds something else.
            raise UnsupportedError(
                "cu_seqlens",
                "building a table of chunks while a CUDA graph is captured",
                "a call with the same tensor before the capture",
            )
        # It outlives the call, so it must not be an inference tensor.
        with torch.inference_mode(False):
            table = chunk_table(self.bounds, chunk_size, self.device)
        if table.is_cuda:
            self._copies.append(torch.cuda.current_stream(table.device).record_event())
        return table

    def _await_copies(self) -> None:
        """Let the current stream wait for what another may still be copying."""
        if capturing(self.device):
            return  # torch waits for the device before it begins a capture
        self._copies = [copy for copy in self._copies if not copy.query()]
        for copy in self._copies:
            torch.cuda.current_stream(self.device.device).wait_event(copy)


class _Entry(NamedTuple):
    tensor: weakref.ref[Tensor]
    version: int
    address: int
    values: Tensor | None
    seqlens: SeqLens

    def describes(self, cu_seqlens: Tensor) -> bool:
        return (
            self.tensor() is cu_seqlens
            and self.version == cu_seqlens._version
            and self.address == _address(cu_seqlens)
            and (self.values is None or torch.equal(self.values, cu_seqlens))
        )


def has_data(tensor: Tensor) -> bool:
    """Whether there is anything to read: meta and fake tensors are shapes only."""
    return not (tensor.is_meta or is_fake(tensor))


def is_fake(tensor: Tensor) -> bool:
    """Whether it is of a FakeTensorMode, where no operation may depend on values."""
    return isinstance(tensor, FakeTensor)


def capturing(tensor: Tensor) -> bool:
    """Whether work on the tensor's device is recorded into a CUDA graph instead of done."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _address(tensor: Tensor) -> int:
    # Assigning to ``data`` moves a tensor and leaves its version.
    return tensor.data_ptr()


def cached_seqlens(cu_seqlens: Tensor, host_copy: Tensor | None = None) -> SeqLens:
    """Return the SeqLens of a boundaries tensor, the same one until the tensor changes.

    Recognised by identity, version and address, so that packing metadata costs one host copy a
    batch, not one a layer. On the host values are compared too: numpy writes without a version.
    Tensors made in inference mode carry no version and are read anew each time, and those without
    data have nothing to be recognised by.
    """
    if cu_seqlens.is_inference() or not has_data(cu_seqlens):
        return SeqLens(cu_seqlens, _tuple_of(host_copy))
    key = id(cu_seqlens)
    entry = _cache.get(key)
    if entry is not None and entry.describes(cu_seqlens):
        if capturing(cu_seqlens) and not cu_seqlens.is_contiguous():
            # The graph must copy the boundaries, not read the copy of an earlier call.
            return entry.seqlens.beside(cu_seqlens.detach())
        return entry.seqlens
    # The cached object keeps an alias: holding the tensor itself would keep it alive for ever. Its
    # entry goes with the tensor, or the tables of 64 past batches would stay on the device.
    seqlens = SeqLens(cu_seqlens.detach(), _tuple_of(host_copy))
    if len(_cache) >= _CACHE_SIZE:
        _cache.clear()
    _cache[key] = _Entry(
        weakref.ref(cu_seqlens, _forget(key)),
        cu_seqlens._version,
        _address(cu_seqlens),
        cu_seqlens.detach().clone() if cu_seqlens.is_cpu else None,
        seqlens,
    )
    return seqlens


def _forget(key: int) -> Callable[[object], None]:
    def forget(gone: object) -> None:
        entry = _cache.get(key)
        if entry is not None and entry.tensor is gone:
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
    table = torch.stack([sequence, inside], dim=1).to(like.dtype)
    if like.device.type == "cuda":
        # From memory that is not pinned the copy would wait for all that was launched before.
        return table.pin_memory().to(like.device, non_blocking=True)
    return table.to(like.device)
