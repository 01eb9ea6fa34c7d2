"""Scores of pairs by the tree, and their gradients, against sums in float64.

``python -m interpreter.tree`` prints a JSON line for every case: the largest error of each result
over the sum of the absolute values of its terms, in half units of the dtype's last place.
"""

# Triton evaluates annotations as part of a kernel, so kernels carry none.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: T201

from __future__ import annotations

import json
import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl
from torch import Tensor

from fla_triton.kernels.channel_prepare import load_decays, store_totals
from fla_triton.kernels.common import store_rows
from fla_triton.kernels.pairs import no_scores, pair_scores, store_scores
from fla_triton.kernels.spans import behind, decays, load_gates, up_to
from fla_triton.kernels.tokens import load_tokens
from fla_triton.kernels.tree import both_ways, pair_gradients
from interpreter.shims import install

Tensors = dict[str, Tensor]
RESULTS = ("scores", "dleft", "dright", "dg", "since", "until")


@triton.jit
def one_block(
    left,
    right,
    g,
    dscores,
    pairs,
    totals,
    scores,
    dleft,
    dright,
    dg,
    since,
    until,
    length,
    K: tl.constexpr,
    BK: tl.constexpr,
    BT: tl.constexpr,
    LEVELS: tl.constexpr,
    FLAT: tl.constexpr,
):
    """Everything that the tree and its sums of gates give, of one block."""
    inner = tl.arange(0, BT)
    live = inner < length
    square = inner[:, None] * BT + inner[None, :]
    dtype: tl.constexpr = right.dtype.element_ty
    both = both_ways(tl.load(dscores + square), dtype)
    store_rows(pairs, both, inner, live, 0, 0, 1, BT, BT, BT)
    tl.debug_barrier()
    near, far = no_scores(BT)
    for column in range(0, K, BK):
        tiles_left = load_tokens(left, 0, length, 0, column, 1, K, BT, BK)
        tiles_right = load_tokens(right, 0, length, 0, column, 1, K, BT, BK)
        near, far, _, _, _, _, _, total = pair_scores(
            near,
            far,
            near,
            far,
            tiles_left,
            (),
            tiles_right,
            load_decays(g, 0, length, 0, column, 1, K, BT, BK),
            1.0,
            dtype,
            BK,
            False,
            FLAT,
            "ieee",
        )
        store_totals(totals, total, 0, column, K, BK)
        high, low = load_gates(g, inner, live, 0, column, 1, K, BT, BK, dtype)
        nothing = tl.zeros([BT, BK], dtype=tl.float32)
        a, b, c = pair_gradients(
            nothing,
            nothing,
            nothing,
            pairs,
            left,
            right,
            high,
            low,
            inner,
            live,
            0,
            column,
            1,
            K,
            BT,
            BK,
            LEVELS,
            True,
            "ieee",
        )
        store_rows(dleft, a, inner, live, 0, column, 1, K, BT, BK)
        store_rows(dright, b, inner, live, 0, column, 1, K, BT, BK)
        store_rows(dg, c, inner, live, 0, column, 1, K, BT, BK)
        d = decays(up_to(BT), high, low, "ieee")
        store_rows(since, d, inner, live, 0, column, 1, K, BT, BK)
        e = decays(behind(BT), high, low, "ieee")
        store_rows(until, e, inner, live, 0, column, 1, K, BT, BK)
    store_scores(scores, near, far, 0, length, 0, 1, BT, FLAT)


def by_sums(x: Tensors) -> tuple[Tensors, Tensors]:
    """What is right, and the sums of the absolute values of its terms."""
    left, right, g, dscores = (x[n].double() for n in ("left", "right", "g", "dscores"))
    g = g.clamp_min(-1e5)  # zero times infinity
    later, earlier = torch.arange(len(g))[:, None], torch.arange(len(g))[None]
    crossed = (later[..., None] >= torch.arange(len(g))) & (
        earlier[..., None] < torch.arange(len(g))
    )
    # Every sum of gates by itself: a difference of sums would lose digits.
    between = torch.einsum("ijt,td->ijd", crossed.double(), g).exp()
    terms = left[:, None] * right[None] * between * (later >= earlier)[..., None]
    pulls = terms * (dscores * (later > earlier))[..., None]

    def reduced(terms: Tensor, pulls: Tensor, left: Tensor, right: Tensor) -> Tensors:
        return {
            "scores": terms.sum(2),
            "dleft": pulls.sum(1) / left,
            "dright": pulls.sum(0) / right,
            "dg": torch.einsum("ijt,ijd->td", crossed.double(), pulls),
            "since": g.cumsum(0).exp(),
            "until": (g.flip(0).cumsum(0).flip(0) - g).exp(),
        }

    sizes = reduced(terms.abs(), pulls.abs(), left.abs(), right.abs())
    for name in ("since", "until"):
        sizes[name] = sizes[name] * (
            1 - sizes[name].clamp_min(1e-300).log()
        )  # the exponent is rounded as well
    return reduced(terms, pulls, left, right), sizes


def by_tree(x: Tensors, block: int, width: int, flat: bool) -> Tensors:
    """What the kernels say."""
    tokens, channels = x["left"].shape
    found = {name: torch.empty_like(x["g"], dtype=torch.float32) for name in RESULTS[1:]}
    found["scores"] = torch.zeros(block, block)
    dscores = torch.zeros(block, block)
    dscores[:tokens, :tokens] = x["dscores"]
    pairs = torch.empty(tokens, block, dtype=x["right"].dtype)
    totals = torch.empty(channels)
    outputs = (found[name] for name in RESULTS)
    given = (x["left"], x["right"], x["g"], dscores, pairs, totals, *outputs)
    levels = block.bit_length() - 1
    sizes = {"K": channels, "BK": width, "BT": block, "LEVELS": levels, "FLAT": flat}
    one_block[(1,)](*given, tokens, **sizes)
    # Two ways to the decay of the whole block.
    torch.testing.assert_close(totals, found["since"][-1], rtol=2e-3, atol=1e-12)
    beyond = found["scores"][:, tokens:].abs().max() if tokens < block else 0.0
    assert beyond == 0.0, "tokens that are not there have scores"
    return {**found, "scores": found["scores"][:tokens, :tokens]}


def gates(regime: str, shape: tuple[int, int]) -> Tensor:
    """Log decays: mild, or mild behind strong ones."""
    mild = -0.2 * torch.rand(shape)
    if regime == "mild":
        return mild
    strong = -(10 ** (4 * torch.rand(shape)))
    chance = torch.rand(shape)
    hard = torch.where(chance < 0.15, strong, torch.where(chance < 0.5, 0.0, mild))
    return hard.masked_fill(torch.rand(shape) < 0.02, -torch.inf)


def main() -> None:
    """Judge every case."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    install()
    for dtype, regime, block, tokens, channels, width in (
        (torch.float32, "mild", 64, 64, 16, 16),
        (torch.float32, "resets", 64, 50, 40, 32),
        (torch.float16, "resets", 32, 32, 16, 16),
        (torch.bfloat16, "mild", 64, 64, 16, 16),
        (torch.bfloat16, "resets", 16, 13, 20, 32),
    ):
        shape = tokens, channels
        x = {
            "left": torch.randn(shape).to(dtype),
            "right": torch.randn(shape).to(dtype),
            "g": gates(regime, shape),
            "dscores": torch.randn(tokens, tokens),
        }
        right, size = by_sums(x)
        found = by_tree(x, block, width, dtype == torch.float16)
        errors = {}
        unit = torch.finfo(dtype).eps / 2
        lost = tokens * 2.0**-24 if dtype == torch.float16 else 1e-30  # what float16 cannot hold
        for name in RESULTS:
            error = (found[name].double() - right[name]).abs()
            errors[name] = float((error / (unit * size[name] + lost)).max())
        print(json.dumps({"case": [str(dtype), regime, block, tokens], "errors": errors}))


if __name__ == "__main__":
    main()
