"""Decay and decayed scores inside a chunk, against the definition that they factor."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import draw_gate, gate_kinds, normal, quick

from fla_core.reference.scores import channel_scores, head_decay


def between(g: torch.Tensor) -> torch.Tensor:
    """``exp(g_{j+1} + ... + g_i)`` at (i, j), summed term by term; zero for j > i. Time is last."""
    size = g.shape[-1]
    token = torch.arange(size)
    inside = (token[None, :, None] < token) & (token <= token[:, None, None])  # i, j, token
    total = torch.where(inside, g[..., None, None, :], 0.0).sum(-1)
    return total.exp().tril()


@quick(60)
@given(gate_kinds, st.sampled_from((1, 2, 8, 32)), st.integers(0, 999))
def test_head_decay(kind, size, seed):
    g = draw_gate(torch.Generator().manual_seed(seed), kind, 2, 3, size)
    decay = head_decay(g)
    for found, want in zip(
        decay,
        (between(g), g.cumsum(-1).exp(), between(g)[..., -1, :], g.sum(-1).exp()),
        strict=True,
    ):
        torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-300)


@quick(60)
@given(gate_kinds, st.sampled_from((1, 2, 8, 32)), st.integers(0, 999))
def test_channel_scores(kind, size, seed):
    gen = torch.Generator().manual_seed(seed)
    g = draw_gate(gen, kind, 2, size, 3)
    rows = (normal(gen, 2, size, 3), normal(gen, 2, size, 3))
    columns = normal(gen, 2, size, 3)
    found = channel_scores(rows, columns, g)
    decay = between(g.mT)  # [2, K, i, j]
    for row, score, decayed in zip(rows, found.scores, found.rows, strict=True):
        want = torch.einsum("bid,bjd,bdij->bij", row, columns, decay)
        torch.testing.assert_close(score, want, rtol=0, atol=1e-12)
        torch.testing.assert_close(decayed, row * g.cumsum(-2).exp(), rtol=1e-12, atol=1e-300)
    torch.testing.assert_close(found.columns, columns * decay[:, :, -1].mT, rtol=1e-12, atol=1e-300)
    torch.testing.assert_close(found.total, g.sum(-2).exp(), rtol=1e-12, atol=1e-300)
