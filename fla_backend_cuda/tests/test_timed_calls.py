"""The calls that the benchmarks time: every family, at every shape."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from fla_triton.declared import ROWS

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import calls


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
