"""Tokens beyond 2**31 elements of every tensor, in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest

import programs

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


def answers(*arguments: str) -> list[dict[str, Any]]:
    run = programs.run("interpreter.offsets", *arguments)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_results_do_not_depend_on_where_tokens_lie() -> None:
    found = answers()
    assert len(found) == 10
    assert {answer["case"]: answer["wrong"] for answer in found if answer["wrong"]} == {}
    assert max(answer["peak_gib"] for answer in found) < 1.0


def test_offsets_of_32_bits_are_noticed() -> None:
    found = answers("--control")
    assert len(found) == 5
    assert [answer["case"] for answer in found if not answer["wrong"]] == []
    # And are what was noticed: results that differ, or an address outside of every tensor.
    errors = [wrong for answer in found for wrong in answer["wrong"] if "Error" in wrong]
    assert all("OutOfBoundsError" in error for error in errors), errors
