"""The interpreter's process: it tells right from wrong, and is started anew when it ends."""

from __future__ import annotations

import importlib.util

import pytest

from interpreter import cases
from interpreter.cases import FILLS, case, failures

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)

RIGHT = case("linear_attn", "float32", (1, 5, 1, 16, 16), (), direction="fwd")
WRONG = case("linear_attn", "float32", (1, 5, 1, 16, 16), ("g",), direction="fwd")


def test_what_fails_is_named_and_what_follows_is_judged() -> None:
    found = failures([(WRONG, FILLS), (RIGHT, FILLS)])
    assert list(found) == [WRONG.id]
    assert "no feature 'g'" in found[WRONG.id]


def test_a_process_that_ended_is_told_of_and_replaced() -> None:
    assert failures([(RIGHT, FILLS)]) == {}
    before = cases._interpreter()
    assert failures([(RIGHT, FILLS)]) == {}
    assert cases._interpreter() is before
    before.end()
    with pytest.raises(RuntimeError, match="ended with status -9"):
        failures([(RIGHT, FILLS)])
    assert failures([(RIGHT, FILLS)]) == {}
    assert cases._interpreter() is not before
