"""Definitions that another process evaluated are those that this one would have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fla_core.cli.calls import measure
from fla_core.cli.calls.bench import gate, recipes
from fla_core.cli.calls.bench.golds import Golds
from fla_core.cli.calls.bench.providers import provider
from fla_core.cli.calls.bench.workload import Workload
from fla_core.cli.calls.problem import CPU

SIZES = {"B": 2, "T": 100, "H": 2, "HV": 2, "K": 16, "V": 16}


@pytest.fixture(params=["chunk_gla", "fused_recurrent_kda"])
def workload(request: pytest.FixtureRequest) -> Workload:
    if request.param == "chunk_gla":
        sizes = {axis: size for axis, size in SIZES.items() if axis != "HV"}
        return Workload(recipes.recipes("chunk_gla")[0], sizes, None, torch.float32)
    return Workload(recipes.stepped(request.param), {**SIZES, "T": 1}, None, torch.float32)


def ahead(workload: Workload, folder: Path, grad: bool) -> Golds:
    for label, part in gate.compared(workload).items():
        gate.evaluate_ahead(label, part, CPU, grad, Golds(folder))
    return Golds(folder)


def verdict(workload: Workload, golds: Golds, grad: bool, factor: float = 1.0) -> gate.Verdict:
    problem = workload.make(CPU, grad)
    function = provider("ours", "reference").function(workload.recipe, problem)
    return gate.check(
        workload,
        problem,
        lambda given: {name: factor * x for name, x in function(given).items()},
        golds,
    )


def no_more(*args: object) -> measure.Gold:
    raise AssertionError("evaluated again")


@pytest.mark.parametrize("grad", [False, True])
def test_what_was_left_is_compared_with(
    workload: Workload, grad: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = verdict(workload, Golds(), grad)
    golds = ahead(workload, tmp_path, grad)
    monkeypatch.setattr(measure, "gold", no_more)
    assert here.green
    assert verdict(workload, golds, grad) == here
    assert not verdict(workload, golds, grad, factor=1.01).green


def test_what_has_gradients_serves_without(
    workload: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golds = ahead(workload, tmp_path, grad=True)
    monkeypatch.setattr(measure, "gold", no_more)
    assert verdict(workload, golds, grad=False).green


def test_another_shape_is_not_at_hand(workload: Workload, tmp_path: Path) -> None:
    golds = ahead(workload, tmp_path, grad=False)
    before = set(tmp_path.iterdir())
    other = workload.resized({"K": 8}, None)
    assert verdict(other, golds, grad=False).green
    assert set(tmp_path.iterdir()) == before
    assert not gate.compared(workload).keys() & gate.compared(other).keys()
