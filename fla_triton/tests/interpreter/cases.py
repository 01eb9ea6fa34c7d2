"""Cases for the interpreter, and running them in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fla_conformance.case import Case

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
    *,
    direction: str = "bwd",
    **more: str,
) -> Case:
    """A case of sizes B, T, H, K and V; a backward one checks outputs too."""
    batch, tokens, heads, keys, values = sizes
    if lengths is not None:
        batch, tokens, features = 1, sum(lengths), (*features, "varlen")
    named = {"B": batch, "T": tokens, "H": heads, "HV": heads, "K": keys, "V": values}
    form = more.pop("form", "chunk")
    return Case(contract, direction, dtype, form, named, frozenset(features), lengths, **more)


def failures(cases: Sequence[tuple[Case, int]], folder: Path) -> dict[str, str]:
    """Run cases, each with the multiprocessors of its pretended chip.

    Args:
        cases: what to run, in order.
        folder: an empty one.

    Returns:
        what was wrong, by case; empty when every answer was right.
    """
    path = folder / "cases.json"
    path.write_text(json.dumps([(c.to_json(), n) for c, n in cases]), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "interpreter", str(path)],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert [answer["id"] for answer in answers] == [c.id for c, _ in cases]
    return {a["id"]: a["failure"] for a in answers if a["failure"]}
