"""The calls that the benchmarks time: every family, at every shape."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch

from fla_triton.declared import ROWS

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import calls
import check_and_time


@pytest.mark.parametrize("contract", [row.contract for row in ROWS])
def test_every_family_is_timed_packed_and_dense(contract: str) -> None:
    dense = list(calls.workloads(contract, ["main"], torch.bfloat16))
    packed = list(calls.workloads(contract, ["varlen"], torch.bfloat16))
    assert dense
    assert [w.recipe.title for w in packed] == [w.recipe.title for w in dense]
    assert {w.lengths for w in dense} == {None}
    for workload in packed:
        assert len(workload.lengths) == 32
        assert sum(workload.lengths) == workload.sizes["T"] == 32768
    assert [w.sizes["B"] for w in calls.steps(contract, torch.bfloat16)] == [1, 64]


def test_a_proof_that_does_not_end_is_ended_with_what_it_started() -> None:
    sleeper = "import time; time.sleep(60)"
    program = (
        f"import subprocess, sys; print('begun', flush=True);"
        f" subprocess.run([sys.executable, '-c', {sleeper!r}])"
    )
    start = time.monotonic()
    process = check_and_time._started([sys.executable, "-c", program], {})
    assert process.stdout is not None
    text, late = check_and_time.ended(process, 5.0)
    assert text == "begun\n"
    assert "did not end" in late
    assert time.monotonic() - start < 30  # its child held the pipe open, and is gone too


def test_a_proof_that_ends_is_not_late() -> None:
    process = check_and_time._started([sys.executable, "-c", "print('done')"], {})
    assert check_and_time.ended(process, 60.0) == ("done\n", "")
    assert process.returncode == 0
