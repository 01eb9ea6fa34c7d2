"""``fla-kernels warmup``."""

from __future__ import annotations

import json

import pytest
from command_line import Invoke


def test_first_and_second_call(invoke: Invoke) -> None:
    line = "warmup kda --shape 1,32,2,16,16 --shape 1,32,2,4,16,8 --grad --device cpu --json"
    result = invoke(*line.split())
    data = json.loads(result.stdout)
    assert result.exit_code == 0
    assert data["operator"] == "chunk_kda"
    first, second = data["calls"]
    assert first["shape"] == {"B": 1, "T": 32, "H": 2, "HV": 2, "K": 16, "V": 16}
    assert first["plan"] == "reference:kda#chunk"
    assert second["plan"] == "reference:kda#chunk (lowered: gva)"
    assert min(first["first_seconds"], first["second_seconds"]) > 0


def test_features_are_taken(invoke: Invoke) -> None:
    line = "warmup chunk_gated_delta_rule --shape 1,32,2,16,16 --device cpu"
    features = ("varlen", "gate", "A_log", "l2norm")
    result = invoke(*line.split(), *(f"--feature={name}" for name in features))
    assert result.exit_code == 0, result.output
    assert "(lowered: gate, l2norm)" in result.stdout
    assert "B=1 T=32 H=2 HV=2 K=16 V=16" in result.stdout


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("gla --shape 1,32,2,16", "positive sizes B,T,H,K,V"),
        ("gla --shape 1,32,2,2,16,16", "positive sizes B,T,H,K,V"),
        ("gla --shape 1,0,2,16,16", "positive sizes"),
        ("kda --shape 1,32,2,x,16", "B,T,H,K,V or B,T,H,HV,K,V"),
        ("kda --shape 1,32,2,3,16,16", "H divides HV"),
        ("gla --shape 2,32,2,16,16 --feature varlen", "B = 1 under the feature varlen"),
        ("gla --shape 1,32,2,16,16 --feature l2norm", "'l2norm'"),
        ("glu --shape 1,32,2,16,16", "close      gla"),
    ],
)
def test_bad_questions(invoke: Invoke, line: str, text: str) -> None:
    result = invoke("warmup", *line.split(), "--device", "cpu")
    assert result.exit_code == 2
    assert text in result.stderr


def test_nobody_accepts(invoke: Invoke) -> None:
    line = "warmup gla --shape 1,32,2,16,16 --device cpu --backend auto,-reference"
    result = invoke(*line.split())
    assert result.exit_code == 1
    assert "has no implementation for this call" in result.stderr
