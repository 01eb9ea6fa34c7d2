"""Cutting sequences into chunks, and decayed scores inside a chunk.

Decay is carried as a *product* of factors ``exp(g) <= 1``, never as a difference of cumulative
sums: after a hard reset (a gate of -1e4) a float32 difference loses every gate smaller than 1e-3,
whereas each factor of a product costs one rounding of its own result. No positive exponent is
ever taken, and nothing is divided, so finite inputs give finite outputs and gradients.
"""

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
        longest = max(lengths, default=0)

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

        first, end = torch.tensor(spans, dtype=torch.long).reshape(-1, 2, 1).unbind(1)
        token = first + torch.arange(self.size)
        valid = token < end
        scatter = torch.empty(self.length, dtype=torch.long)
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


def by_sequence(
    run: Callable[..., tuple[Tensor, Tensor]],
    state: Tensor,
    operands: Sequence[Tensor | None],
    bounds: tuple[int, ...] | None,
) -> tuple[Tensor, Tensor]:
    """Call ``run(state, *operands)`` on dense rows, or on every packed sequence by itself.

    Args:
        run: gives outputs ``[B, T, ...]`` and final states.
        state: initial states ``[N, ...]``.
        operands: ``[B, T, ...]`` or None.
        bounds: N + 1 token offsets of the packed sequences of one row, or None.
    """
    if bounds is None or len(bounds) <= 2:
        return run(state, *operands)
    lengths = [end - start for start, end in pairwise(bounds)]
    # Split, not sliced: the backward of a slice touches the whole row.
    spans = [
        [None] * len(lengths) if x is None else x.split_with_sizes(lengths, 1) for x in operands
    ]
    states = state.split_with_sizes([1] * len(lengths))
    runs = [run(start, *span) for start, *span in zip(states, *spans, strict=True)]
    return torch.cat([o for o, _ in runs], 1), torch.cat([final for _, final in runs])


class HeadDecay(NamedTuple):
    """Decay inside chunks of C tokens, one gate a head."""

    #: ``[..., C, C]``: exp of the gates of tokens j + 1 to i at (i, j), zero above the diagonal.
    matrix: Tensor
    #: ``[..., C]``: from the chunk's start to token i, inclusive.
    since_start: Tensor
    #: ``[..., C]``: from token i, exclusive, to the chunk's end.
    until_end: Tensor
    #: ``[...]``: of the whole chunk.
    total: Tensor


class ChannelScores(NamedTuple):
    """Scores and decayed operands of chunks of C tokens, one gate a channel."""

    #: One ``[..., C, C]`` for each kind of row: sum_d row_id col_jd decay_d(j + 1 .. i), i >= j.
    scores: tuple[Tensor, ...]
    #: The rows ``[..., C, K]``, decayed from the chunk's start to their token, inclusive.
    rows: tuple[Tensor, ...]
    #: The columns ``[..., C, K]``, decayed from their token, exclusive, to the chunk's end.
    columns: Tensor
    #: ``[..., K]``: decay of the whole chunk.
    total: Tensor


def head_decay(g: Tensor) -> HeadDecay:
    """Decay inside chunks from log gates ``g [..., C]``.

    Row by row, ``row_i = [row_{i-1} exp(g_i), 1]``, over the C + 1 points between tokens. Half the
    time of merging halves, there being no channels to fill the arithmetic units with.
    """
    points = torch.eye(g.shape[-1] + 1, dtype=g.dtype, device=g.device).unbind()
    row = points[0].expand(*g.shape[:-1], -1)
    rows = []
    for decay, point in zip(g.exp()[..., None].unbind(-2), points[1:], strict=True):
        row = torch.addcmul(point, row, decay)
        rows.append(row)
    # [..., C + 1, C + 1] without its first row: decay from point j to point i.
    between = torch.stack(rows, -2)
    since_start, matrix = between.split_with_sizes((1, g.shape[-1]), -1)
    return HeadDecay(matrix, since_start[..., 0], row[..., 1:], row[..., 0])


def channel_scores(rows: Sequence[Tensor], columns: Tensor, g: Tensor) -> ChannelScores:
    """Scores of rows against columns under a decay per channel.

    ``scores[i, j] = sum_d rows[i, d] columns[j, d] exp(g[j + 1, d] + ... + g[i, d])`` for i >= j.
    A block of tokens is the merger of its halves: the off-diagonal score of the right half's rows
    with the left half's columns factors at the point between them, where both carry a decay of at
    most one; blocks of all chunks at one level are multiplied at once.

    Args:
        rows: one or more ``[..., C, K]`` (q; for a delta rule q and k), C a power of two.
        columns: ``[..., C, K]``.
        g: log gates ``[..., C, K]``.
    """
    kinds = len(rows)
    decay = g.exp()
    lead, (size, width) = g.shape[:-2], g.shape[-2:]
    # Blocks of s tokens: left [.., C/s, kinds, s, K], right and decay alike without `kinds`.
    left = torch.stack(tuple(rows), -2)[..., None, :] * decay[..., None, None, :]
    right, total = columns[..., None, :], decay
    scores = torch.stack([(row * columns).sum(-1) for row in rows], -1)[..., None, None]
    while right.shape[-3] > 1:
        scores, left, right, total = _merge(scores, left, right, total)
    blocks = scores.reshape(*lead, kinds, size, size).unbind(-3)
    decayed = left.reshape(*lead, kinds, size, width).unbind(-3)
    return ChannelScores(
        blocks, decayed, right.reshape(*lead, size, width), total.reshape(*lead, width)
    )


def _merge(
    scores: Tensor, rows: Tensor, columns: Tensor, total: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    size = columns.shape[-2]
    rows_a, rows_b = halves(rows, -4)
    columns_a, columns_b = halves(columns, -3)
    total_a, total_b = halves(total, -2)
    scores_a, scores_b = halves(scores, -4)

    across = rows_b.flatten(-3, -2) @ columns_a.mT
    lower = torch.cat([torch.unflatten(across, -2, (-1, size)), scores_b], -1)
    scores = torch.cat([F.pad(scores_a, (0, size)), lower], -2)
    rows = torch.cat([rows_a, rows_b * total_a[..., None, None, :]], -2)
    columns = torch.cat([columns_a * total_b[..., None, :], columns_b], -2)
    return scores, rows, columns, total_a * total_b


def halves(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    """Even and odd entries along ``dim``: the left and right halves of blocks to be merged."""
    return torch.unflatten(x, dim, (-1, 2)).unbind(dim)


def _active(counts: Sequence[int]) -> tuple[int, ...]:
    ending = [0] * (max(counts, default=0) + 1)
    for count in counts:
        ending[count] += 1
    return tuple(len(counts) - gone for gone in list(accumulate(ending))[:-1])
