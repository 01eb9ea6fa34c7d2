"""Comparisons of delta rules with each other's definitions: on the reference, and spoilt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fla_core.cli.calls import measure

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import agree

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agree, "TOKENS", 40)


@pytest.mark.parametrize("contract", agree.LIMITS)
def test_a_limit_is_judged_by_the_definition_of_the_other(contract: str, capsys: Any) -> None:
    assert agree.limits(contract, CPU, "reference")
    other = agree.CONTRACTS[agree.CONTRACTS.index(contract) + 1]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(f"reference:{other}#chunk" in line and " d beta " in line for line in lines)


def test_a_wrong_limit_is_told(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def decaying(given: Any, more: Any) -> Any:
        g = torch.full_like(given["beta"], -0.05, dtype=torch.float32)
        return agree.chunk_gated_delta_rule(**given, g=g, **more)

    monkeypatch.setitem(agree.LIMITS, "delta_rule", ("decays", decaying))
    assert not agree.limits("delta_rule", CPU, "reference")
    assert "FAIL" in capsys.readouterr().out


def test_only_the_plugin_counts(capsys: Any) -> None:
    problem = next(agree.problems("chunk_delta_rule", CPU))
    right = measure.gold(problem, measure.by_chunks)
    recipe = agree.stated("chunk_delta_rule")
    function = agree.provider("ours", "reference").function(recipe, problem)
    found = agree.judged(problem, function, right)
    assert agree.told("own", problem, found, "reference")
    assert not agree.told("other", problem, found, "cuda")
    assert "FAIL not cuda" in capsys.readouterr().out


@pytest.mark.parametrize("contract", ["kda", "gdn2"])
def test_a_long_call(contract: str) -> None:
    assert agree.long(contract, CPU, "reference", 200)
