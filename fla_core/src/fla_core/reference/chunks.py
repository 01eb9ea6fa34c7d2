"""Cutting sequences into chunks, and passing over the chunks of all sequences at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class ChunkLayout:
    """Where the chunks of a batch of sequences lie.

    Chunks are ordered by their number inside their sequence, and among equals by sequence,
    longest first. The chunks of one step of a sequential pass are therefore one contiguous slice,
    and the sequences still active are always a prefix.

    Args:
        batch, length: the sizes B and T of the inputs ``[B, T, ...]``.
        chunk_size: tokens per chunk, a power of two. A chunk is never made longer than the
            power of two that holds the longest sequence.
        bounds: N + 1 token offsets of the packed sequences of one row, or None for dense rows.
        device: where index tables of packed sequences are kept.

    Raises:
        ValueError: if ``chunk_size`` is not a positive power of two.
    """

    __slots__ = ("_packed", "batch", "length", "offsets", "size", "steps")

    def __init__(
        self,
        batch: int,
        length: int,
        chunk_size: int,
        bounds: tuple[int, ...] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if chunk_size < 1 or chunk_size & (chunk_size - 1):
            raise ValueError(f"chunk_size: expected a positive power of two, got {chunk_size}")
        if bounds == (0, length):
            bounds = None
        lengths = [length] * batch if bounds is None else [b - a for a, b in pairwise(bounds)]
        longest = max(lengths, default=length)

        self.batch, self.length = batch, length
        #: Tokens per chunk, C.
        self.size = min(chunk_size, 1 << max(longest - 1, 0).bit_length())
        counts = [-(-n // self.size) for n in lengths]
        #: N + 1 chunk offsets of the sequences, in their given order.
        self.offsets = (0, *accumulate(counts))
        #: Number of active sequences at each step of a sequential pass.
        self.steps = _active(counts)
        self._packed = None if bounds is None else self._index(bounds, counts, device)

    @classmethod
    def of(cls, x: Tensor, chunk_size: int, bounds: tuple[int, ...] | None) -> ChunkLayout:
        """The layout of the tokens of ``x [B, T, ...]``."""
        return cls(x.shape[0], x.shape[1], chunk_size, bounds, x.device)

    @property
    def chunks(self) -> int:
        """Number of chunks over all sequences, NT."""
        return self.offsets[-1]

    @property
    def sequences(self) -> int:
        """Number of sequences, N."""
        return len(self.offsets) - 1

    def pack(self, x: Tensor, fill: float = 0) -> Tensor:
        """Cut ``x [B, T, ...]`` into ``[NT, C, ...]``; padding tokens hold ``fill``."""
        rest = x.shape[2:]
        if self._packed is not None:
            tokens = x[0].index_select(0, self._packed.gather)
            tokens = tokens.reshape(self.chunks, self.size, *rest)
            padding = self._packed.padding
            if padding is None:
                return tokens
            return tokens.masked_fill(padding.reshape(*padding.shape, *[1] * len(rest)), fill)
        per_row = self._chunks_per_row
        missing = per_row * self.size - self.length
        if missing:
            x = F.pad(x, (*[0] * (2 * len(rest)), 0, missing), value=fill)
        rows = x.reshape(self.batch, per_row, self.size, *rest)
        return rows.transpose(0, 1).reshape(self.chunks, self.size, *rest)

    def unpack(self, y: Tensor) -> Tensor:
        """Join ``y [NT, C, ...]`` into ``[B, T, ...]``, contiguous and without padding."""
        rest = y.shape[2:]
        if self._packed is not None:
            tokens = y.reshape(self.chunks * self.size, *rest)
            return tokens.index_select(0, self._packed.scatter)[None]
        per_row = self._chunks_per_row
        rows = y.reshape(per_row, self.batch, self.size, *rest).transpose(0, 1)
        return rows.reshape(self.batch, per_row * self.size, *rest)[:, : self.length].contiguous()

    def unpack_chunks(self, y: Tensor) -> Tensor:
        """Order values per chunk ``[NT, ...]`` as ``[B, chunks per row, ...]``.

        Packed sequences give ``[1, NT, ...]``, sequence after sequence (see ``offsets``).
        """
        if self._packed is not None:
            return y.index_select(0, self._packed.chunks)[None]
        rows = y.reshape(self._chunks_per_row, self.batch, *y.shape[1:])
        return rows.transpose(0, 1)

    def scan(
        self, initial: Tensor, step: Callable[..., Tensor], *packed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run ``state = step(state, *chunk)`` along every sequence, all sequences at once.

        Args:
            initial: states before the first token ``[N, H, ...]``.
            step: maps states ``[n * H, ...]`` of the n active sequences, and the rows of every
                packed tensor that belong to their present chunk, to the next states.
            packed: values per chunk ``[NT, H, ...]``.

        Returns:
            The states before each chunk ``[NT, H, ...]`` and after the last token
            ``[N, H, ...]``; the latter never shares memory with ``initial``.
        """
        table, heads = self._packed, initial.shape[1]
        state = initial if table is None else initial.index_select(0, table.order)
        state, before, finished = state.flatten(0, 1), [], []
        rows = [active * heads for active in self.steps]
        # Split, not sliced: the backward of a slice touches the whole tensor.
        parts = (x.flatten(0, 1).split_with_sizes(rows) for x in packed)
        for active, *chunk in zip(rows, *parts, strict=True):
            if active < state.shape[0]:
                state, done = state.split_with_sizes((active, state.shape[0] - active))
                finished.append(done)
            before.append(state)
            state = step(state, *chunk)
        final = torch.cat([state, *reversed(finished)]).view(initial.shape)
        if table is not None:
            final = final.index_select(0, table.order.argsort())
        shape = (self.chunks, *initial.shape[1:])
        states = torch.cat(before).view(shape) if before else initial.new_empty(shape)
        return states, final

    @property
    def _chunks_per_row(self) -> int:
        return -(-self.length // self.size)

    def _index(
        self, bounds: tuple[int, ...], counts: Sequence[int], device: torch.device | str
    ) -> _Packed:
        order = sorted(range(len(counts)), key=lambda i: -counts[i])
        places = [(step, i) for step, active in enumerate(self.steps) for i in order[:active]]
        spans = [(bounds[i] + step * self.size, bounds[i + 1]) for step, i in places]
        chunks = sorted(range(len(places)), key=lambda row: places[row][::-1])

        # On the host by name: the caller may have set another default device.
        where = torch.tensor(spans, dtype=torch.long, device="cpu").reshape(-1, 2, 1)
        first, end = where.unbind(1)
        token = first + torch.arange(self.size, device="cpu")
        valid = token < end
        scatter = torch.empty(self.length, dtype=torch.long, device="cpu")
        scatter[token[valid]] = valid.flatten().nonzero().squeeze(1)
        return _Packed(
            order=torch.tensor(order, dtype=torch.long, device=device),
            chunks=torch.tensor(chunks, dtype=torch.long, device=device),
            gather=token.clamp_max(self.length - 1).flatten().to(device),
            scatter=scatter.to(device),
            padding=None if bool(valid.all()) else valid.logical_not().to(device),
        )


class _Packed(NamedTuple):
    """Index tables of packed sequences."""

    order: Tensor  # [N], sequences, longest first
    chunks: Tensor  # [NT], rows of the layout, sequence after sequence
    gather: Tensor  # [NT * C], tokens; padding reads one that exists
    scatter: Tensor  # [T], places of the tokens in NT * C
    padding: Tensor | None  # [NT, C], where nothing belongs; None if there is no such place


def _active(counts: Sequence[int]) -> tuple[int, ...]:
    ending = [0] * (max(counts, default=0) + 1)
    for count in counts:
        ending[count] += 1
    return tuple(len(counts) - gone for gone in list(accumulate(ending))[:-1])
