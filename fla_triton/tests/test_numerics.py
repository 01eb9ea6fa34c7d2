"""Kernels in Triton's interpreter against the float64 recurrence; stray accesses raise."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fla_conformance.case import Case

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)

STATES = ("initial_state", "final_state")
PACKED = (65, 0, 1, 130, 17)
FILLS, IDLE = 2, 132
"""Multiprocessors of the pretended chip: of two, one head leaves none idle; time is not cut."""


def case(
    contract: str,
    dtype: str,
    sizes: tuple[int, int, int, int, int],
    features: tuple[str, ...],
    lengths: tuple[int, ...] | None = None,
    **more: str,
) -> Case:
    """A backward case, which checks outputs too."""
    batch, tokens, heads, keys, values = sizes
    if lengths is not None:
        batch, tokens, features = 1, sum(lengths), (*features, "varlen")
    named = {"B": batch, "T": tokens, "H": heads, "HV": heads, "K": keys, "V": values}
    form = more.pop("form", "chunk")
    return Case(contract, "bwd", dtype, form, named, frozenset(features), lengths, **more)


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
        (case("simple_gla", "bfloat16", (1, 800, 1, 16, 16), ("g_gamma", *STATES)), IDLE),
    ],
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
def test_interpreted_kernels_are_right(name: str, tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps([(c.to_json(), n) for c, n in SETS[name]]), encoding="utf-8")
    here = Path(__file__).parent
    run = subprocess.run(
        [sys.executable, "-m", "interpreter", str(path)],
        cwd=here,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert [answer["id"] for answer in answers] == [c.id for c, _ in SETS[name]]
    assert {a["id"]: a["failure"] for a in answers if a["failure"]} == {}
