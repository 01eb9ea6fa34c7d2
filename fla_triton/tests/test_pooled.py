"""Decoding with states in the slots of a pool, in Triton's interpreter against float64."""

from __future__ import annotations

import importlib.util
import json

import pytest

import programs
from fla_triton.declared import POOLED, SERVED, implementations


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_interpreted_kernels_read_and_write_their_slots_alone() -> None:
    run = programs.run("interpreter.pooled")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["wrong"] == {}
    assert found["ways"] == 54


def test_families_that_know_pools_say_so() -> None:
    for row, one in zip(SERVED, implementations("somewhere", ("sm90",), rows=SERVED), strict=True):
        pools = row.family in POOLED and "states" not in row.required
        assert one.pooled == (f"somewhere:{row.family}.pooled" if pools else None)
