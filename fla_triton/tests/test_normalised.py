"""Normalised linear attention over interpreted kernels against the float64 recurrence."""

from __future__ import annotations

import importlib.util

import pytest

from interpreter.cases import FILLS, IDLE, PACKED, STATES, case, failures

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)

Z = ("normalize", "initial_z", *STATES)
CASES = [
    # The gradient of a first query vanishes, and that of the second nearly.
    case("linear_attn", "bfloat16", (1, 2, 2, 16, 16), ("normalize",)),
    case("linear_attn", "bfloat16", (1, 150, 1, 60, 33), Z),
    case("linear_attn", "bfloat16", (1, 0, 1, 16, 16), Z, PACKED),
    case("linear_attn", "bfloat16", (1, 0, 1, 16, 32), ("normalize",), (2, 3, 64, 0, 17)),
    case("linear_attn", "bfloat16", (1, 7, 1, 16, 16), (*Z, "reverse")),
    case("linear_attn", "float16", (1, 80, 1, 16, 16), ("normalize",)),
]


def test_interpreted_kernels_are_right_where_they_are_normalised() -> None:
    assert failures([(one, FILLS) for one in CASES]) == {}


def test_kernels_normalise_what_no_lowering_has_widened() -> None:
    cases = [
        case("linear_attn", "bfloat16", (1, 2, 2, 16, 16), ("normalize",)),
        case("linear_attn", "bfloat16", (1, 150, 1, 60, 33), Z),
        case("linear_attn", "bfloat16", (1, 0, 1, 16, 32), Z, PACKED),
        case("linear_attn", "bfloat16", (2, 7, 1, 16, 16), ("normalize", "initial_z")),
        case("linear_attn", "bfloat16", (1, 300, 1, 16, 16), ("normalize", "initial_state")),
    ]
    chips = (FILLS, IDLE)
    assert failures([(one, chip) for one in cases for chip in chips], as_declared=False) == {}
