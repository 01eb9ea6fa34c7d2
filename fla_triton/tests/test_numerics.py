"""Kernels in Triton's interpreter against the float64 recurrence; stray accesses raise."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest

from fla_conformance.case import Case
from fla_triton.plan import Problem, plan
from fla_triton.profiles import PROFILES
from interpreter.cases import FILLS, IDLE, PACKED, STATES, case, failures

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)

SETS = {
    "gates": [
        (case("simple_gla", "float32", (1, 70, 2, 16, 16), ("g",)), FILLS),
        (case("simple_gla", "bfloat16", (1, 150, 1, 60, 100), ("g", *STATES)), FILLS),
        (case("simple_gla", "float16", (1, 150, 1, 16, 24), ("g_gamma", *STATES)), FILLS),
        (case("simple_gla", "bfloat16", (2, 5, 1, 20, 17), ("g", *STATES)), FILLS),
        (case("linear_attn", "float32", (1, 80, 1, 33, 70), STATES), FILLS),
    ],
    "packed": [
        (
            case("simple_gla", "float32", (1, 0, 1, 20, 17), ("g", "g_gamma", *STATES), PACKED).but(
                regime="resets"
            ),
            FILLS,
        ),
        (case("linear_attn", "bfloat16", (1, 0, 2, 16, 16), STATES, PACKED), FILLS),
        (case("simple_gla", "float32", (1, 0, 1, 16, 16), ("g", *STATES), (300, 0, 5)), IDLE),
    ],
    "segments": [
        (case("simple_gla", "float32", (1, 800, 1, 16, 16), ("g", *STATES)), IDLE),
        (case("simple_gla", "bfloat16", (1, 1600, 1, 16, 16), ("g_gamma", *STATES)), IDLE),
    ],
    "decoding": [(case("simple_gla", "float16", (2, 5, 1, 20, 17), ("g", *STATES)), FILLS)],
    "regimes": [
        (
            case("simple_gla", dtype, (1, 140, 1, 16, 16), ("g", *STATES)).but(regime=regime),
            FILLS,
        )
        for dtype, regime in (
            ("float32", "resets"),
            ("bfloat16", "fast_decay"),
            ("float16", "long_memory"),
        )
    ],
}


@pytest.mark.parametrize("name", SETS)
def test_interpreted_kernels_are_right(name: str) -> None:
    assert failures(SETS[name]) == {}


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(("one", "processors"), SETS["segments"], ids=lambda x: getattr(x, "id", x))
def test_long_sequences_are_cut_in_time(one: Case, processors: int, direction: str) -> None:
    sizes, itemsize = one.sizes, 2 if one.dtype == "bfloat16" else 4
    batch, tokens, heads, keys, values = (sizes[name] for name in ("B", "T", "H", "K", "V"))
    problem = Problem(
        batch, batch * tokens, tokens, heads, keys, values, itemsize, gated="g" in one.features
    )
    profile = replace(PROFILES["sm90"], multiprocessors=processors)
    assert plan(problem, direction, profile).segments > 1
