"""Chunk layout: packing, unpacking and the pass along each sequence."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import normal, problems, quick

from fla_core.reference.chunks import ChunkLayout

CHUNK_SIZES = st.sampled_from((1, 2, 16, 64))


def layout_and_tokens(problem, chunk_size):
    x = normal(problem.generator(), problem.B, problem.T, problem.H, problem.K)
    return ChunkLayout.of(x, chunk_size, problem.bounds), x


@quick(60)
@given(problems(), CHUNK_SIZES)
def test_unpack_undoes_pack(problem, chunk_size):
    layout, x = layout_and_tokens(problem, chunk_size)
    packed = layout.pack(x)
    assert packed.shape == (layout.chunks, layout.size, problem.H, problem.K)
    assert torch.equal(layout.unpack(packed), x)


@quick(60)
@given(problems(), CHUNK_SIZES)
def test_chunks_hold_one_sequence_and_padding(problem, chunk_size):
    """Written from the definition: whole chunks of a sequence in order, its last one filled up."""
    layout, x = layout_and_tokens(problem, chunk_size)
    by_sequence = layout.unpack_chunks(layout.pack(x, fill=7.0)).flatten(0, 1)
    spans = [
        (row, start, min(start + layout.size, tokens.stop))
        for row, tokens in problem.sequences
        for start in range(tokens.start, tokens.stop, layout.size)
    ]
    assert len(spans) == layout.chunks == layout.offsets[-1]
    for chunk, (row, start, stop) in zip(by_sequence, spans, strict=True):
        assert torch.equal(chunk[: stop - start], x[row, start:stop])
        assert torch.equal(chunk[stop - start :], torch.full_like(chunk[stop - start :], 7.0))


@quick(60)
@given(problems(), CHUNK_SIZES)
def test_scan_runs_along_each_sequence(problem, chunk_size):
    """With an update that depends on the order of the chunks."""
    layout, x = layout_and_tokens(problem, chunk_size)
    initial = normal(problem.generator(), problem.N, problem.H, problem.K)
    packed = layout.pack(x).sum(1)
    states, final = layout.scan(initial, lambda state, chunk: state * 0.5 + chunk, packed)

    chunks, before, want_final = layout.unpack_chunks(packed).flatten(0, 1), [], []
    for i, state in enumerate(initial):
        for chunk in chunks[layout.offsets[i] : layout.offsets[i + 1]]:
            before.append(state)
            state = state * 0.5 + chunk
        want_final.append(state)
    assert layout.sequences == problem.N
    assert torch.equal(final, torch.stack(want_final))
    assert states.shape == (layout.chunks, problem.H, problem.K)
    if before:
        assert torch.equal(layout.unpack_chunks(states).flatten(0, 1), torch.stack(before))


def test_active_sequences_are_a_prefix_of_each_step():
    layout = ChunkLayout(1, 90, 16, (0, 3, 3, 83, 90))
    assert layout.offsets == (0, 1, 1, 6, 7)
    assert layout.steps == (3, 1, 1, 1, 1)


@pytest.mark.parametrize(("length", "size"), [(0, 1), (1, 1), (2, 2), (9, 16), (16, 16), (99, 64)])
def test_chunks_are_no_longer_than_the_longest_sequence_needs(length, size):
    assert ChunkLayout(1, length, 64).size == size


def test_an_empty_batch_has_as_many_chunks_a_row_as_any_other() -> None:
    layout = ChunkLayout(batch=0, length=65, chunk_size=64)
    assert layout.unpack_chunks(torch.empty(0, 3)).shape == (0, 2, 3)
