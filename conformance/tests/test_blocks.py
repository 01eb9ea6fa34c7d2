"""Means over blocks and rows."""

from __future__ import annotations

import torch

from fla_conformance.blocks import Layout

X = torch.arange(2 * 6 * 3 * 4, dtype=torch.float64).view(2, 6, 3, 4)


def test_a_dense_block_is_one_batch_row_and_head() -> None:
    layout = Layout(("B", "T", "H", "K"))
    assert torch.equal(layout.block_mean(X), X.mean((1, 3)))
    assert torch.equal(layout.row_mean(X), X.mean(-1))


def test_a_packed_block_is_one_sequence_and_head() -> None:
    layout, x = Layout(("B", "T", "H", "K"), (0, 2, 2, 6)), X[:1]
    blocks = layout.block_mean(x)
    assert blocks.shape == (3, 1, 3)
    assert torch.equal(blocks[0], x[:, :2].mean((1, 3)))
    assert torch.equal(blocks[1], torch.zeros(1, 3, dtype=x.dtype))
    assert torch.equal(blocks[2], x[:, 2:].mean((1, 3)))


def test_a_number_for_each_token_and_head_is_a_row() -> None:
    layout = Layout(("B", "T", "H"))
    x = X[..., 0]
    assert torch.equal(layout.row_mean(x), x)
    assert torch.equal(layout.block_mean(x), x.mean(1))


def test_a_state_has_a_row_for_each_key_channel() -> None:
    layout = Layout(("N", "H", "K", "V"))
    assert torch.equal(layout.block_mean(X), X.mean((2, 3)))
    assert torch.equal(layout.row_mean(X), X.mean(-1))


def test_a_parameter_is_one_block() -> None:
    layout, x = Layout(("HV",)), X.flatten()
    assert layout.block_mean(x) == x.mean()
    assert layout.row_mean(x) == x.mean()


def test_rows_find_their_blocks() -> None:
    dense, packed = Layout(("B", "T", "H", "K")), Layout(("B", "T", "H"), (0, 2, 2, 6))
    assert torch.equal(
        dense.to_rows(dense.block_mean(X), dense.row_mean(X)),
        X.mean((1, 3))[:, None].expand(2, 6, 3),
    )
    x = X[:1, ..., 0]
    spread = packed.to_rows(packed.block_mean(x), packed.row_mean(x))
    assert torch.equal(spread[0, :2], x[0, :2].mean(0).expand(2, 3))
    assert torch.equal(spread[0, 2:], x[0, 2:].mean(0).expand(4, 3))
    state = Layout(("N", "H", "K", "V"))
    assert state.to_rows(state.block_mean(X), state.row_mean(X)).shape == (2, 6, 3)


def test_nothing_has_no_rows() -> None:
    for letters, bounds in ((("B", "T", "H", "K"), None), (("B", "T", "H", "K"), (0,))):
        layout, x = Layout(letters, bounds), X[:1, :0]
        blocks, rows = layout.block_mean(x), layout.row_mean(x)
        assert layout.to_rows(blocks, rows).numel() == 0


def test_a_block_is_a_matrix_where_it_has_two_axes() -> None:
    (dense,) = Layout(("B", "T", "H", "K")).matrices(X)
    assert torch.equal(dense, X.transpose(1, 2))
    first, last = Layout(("B", "T", "H", "K"), (0, 2, 2, 6)).matrices(X[:1])
    assert torch.equal(first, X[:1, :2].transpose(1, 2))
    assert torch.equal(last, X[:1, 2:].transpose(1, 2))
    (state,) = Layout(("N", "H", "K", "V")).matrices(X)
    assert torch.equal(state, X)
    for letters in (("B", "T", "H"), ("N", "H", "K"), ("HV",)):
        assert not Layout(letters).matrices(X[..., 0])


def test_a_state_has_rows_wherever_its_key_channels_are() -> None:
    assert Layout(("N", "H", "K", "V")).few_rows(X) == 3
    assert Layout(("N", "H", "V", "K")).few_rows(X) == 4
    assert Layout(("B", "NT", "H", "K", "V")).few_rows(X[:, :, None]) == 6 * 3


def test_numbers_of_tokens_are_rows_and_vectors_are_not_counted() -> None:
    assert Layout(("B", "T", "H")).few_rows(X[..., 0]) == 6
    packed = Layout(("B", "T", "H"), (0, 1, 1, 6))
    rows = packed.few_rows(X[:1, ..., 0])
    assert rows.flatten().tolist() == [1, 0, 5]
    assert (packed.block_mean(X[:1, ..., 0]) * rows).shape == (3, 1, 3)
    assert Layout(("B", "T", "H", "K")).few_rows(X).isinf()
    assert Layout(("N", "H", "K")).few_rows(X[..., 0]).isinf()
    assert Layout(("HV",)).few_rows(X.flatten()).isinf()
