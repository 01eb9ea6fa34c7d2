"""Decoding with states in the slots of a pool, in Triton's interpreter against float64."""

from __future__ import annotations

import importlib.util
import json

import pytest

import programs
from fla_triton.declared import POOLED, ROWS, implementations


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_interpreted_kernels_read_and_write_their_slots_alone() -> None:
    run = programs.run("interpreter.pooled")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["wrong"] == {}
    assert found["ways"] == 36


def test_families_that_know_pools_say_so() -> None:
    families = {row.contract: row.family for row in ROWS}
    for one in implementations("somewhere", ("sm90",)):
        family = families[one.contract]
        assert one.pooled == (f"somewhere:{family}.pooled" if family in POOLED else None)
