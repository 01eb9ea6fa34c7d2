"""Tokens appended to a sequence leave earlier outputs as they are, to the bit; interpreted."""

from __future__ import annotations

import importlib.util
import json

import pytest

import programs
from fla_triton.plan import DECODE_TOKENS

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)

ROUNDING = {"bf16": 2.0**-7, "fp32": 2.0**-20}
"""Of the largest output: a unit in the last place of bfloat16, eight of float32."""


def test_from_17_tokens_on_outputs_do_not_depend_on_what_follows() -> None:
    run = programs.run("interpreter.appended")
    assert run.returncode == 0, run.stderr
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(answers) == 14
    for answer in answers:
        found = {int(tokens): away for tokens, away in answer["differences"].items()}
        assert {t: x for t, x in found.items() if t > DECODE_TOKENS and x != 0.0} == {}, answer
        assert max(t for t in found if t > DECODE_TOKENS) == 100
        # Shorter calls are walked token by token: another rounding, which this must see.
        assert 0.0 < found[DECODE_TOKENS] <= ROUNDING[answer["case"].split("/")[2]], answer
        assert found[1] <= ROUNDING[answer["case"].split("/")[2]], answer
