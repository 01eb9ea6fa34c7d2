"""The tree of references of channel decays, interpreted, against sums in float64."""

from __future__ import annotations

import importlib.util
import json

import pytest

import programs

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)

LIMITS = {"torch.float32": 40.0, "torch.float16": 3.0, "torch.bfloat16": 3.0}
"""In half units of the last place. In 16 bits each term has its factors' roundings; in float32 what
shows is that of exponents, 15 units for exp(-15)."""


def test_the_tree_agrees_with_sums_in_float64() -> None:
    run = programs.run("interpreter.tree")
    assert run.returncode == 0, run.stderr
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(answers) == 5
    for answer in answers:
        limit = LIMITS[answer["case"][0]]
        assert {n: e for n, e in answer["errors"].items() if not e <= limit} == {}, answer["case"]
