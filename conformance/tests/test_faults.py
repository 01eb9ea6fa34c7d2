"""Planted faults: each is told by some case, and the suite fails every case that can tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fla_conformance.case import Case
from fla_conformance.cli import app
from fla_conformance.faults import FAULTS, Fault, Finding, Sighting, hunt, hunts
from fla_conformance.faults.fault import wrong
from fla_conformance.faults.hunt import discriminates, is_certain, mutated_gold
from fla_conformance.faults.maths import right
from fla_conformance.faults.plant import planted
from fla_conformance.grid import grid
from fla_conformance.laws import LAWS
from fla_conformance.numerics import gold, judge
from fla_conformance.result import Outcome
from fla_conformance.run import run_case
from fla_core.call import Call
from fla_core.contracts import CONTRACTS
from fla_core.lowerings import Outputs

RIGHT = wrong("right", "nothing is wrong", right)
CASE = Case(
    "gated_delta_rule",
    "bwd",
    "float32",
    "chunk",
    {"B": 2, "T": 17, "H": 2, "HV": 2, "K": 4, "V": 3},
    frozenset({"g", "beta", "initial_state", "final_state"}),
)


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=lambda contract: contract.name)
def test_every_fault_is_caught_wherever_it_can_be_told(contract) -> None:
    survivors = [
        finding
        for fault, planted_in in hunts(contract.name)
        if (finding := hunt(fault, planted_in)).survives
    ]
    assert survivors == []


def test_every_fault_has_a_contract_and_every_contract_has_faults() -> None:
    pairs = list(hunts())
    assert {fault.name for fault, _ in pairs} == set(FAULTS)
    assert {contract.name for _, contract in pairs} == set(CONTRACTS)
    assert len(FAULTS) >= 30


def test_faults_name_laws_that_exist() -> None:
    assert {law for fault in FAULTS.values() for law in fault.laws} <= set(LAWS)


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=lambda contract: contract.name)
def test_without_a_fault_the_same_plugin_passes(contract) -> None:
    with planted(RIGHT, contract) as target:
        for level in ("L1", "L2"):
            for case in grid(contract, target.declaration, level, 6):
                result = run_case(case, target, level)
                assert result.outcome is Outcome.PASS, (case.id, result.detail)


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=lambda contract: contract.name)
def test_states_in_16_bits_are_told_in_calls_of_16_bits(contract) -> None:
    with planted(FAULTS["state-narrow"], contract) as target:
        found = grid(contract, target.declaration, "L1", "ci")
    idle = {case.dtype: case for case in found if case.regime == "idle"}
    assert discriminates(FAULTS["state-narrow"], idle["bfloat16"])


def test_mutated_gold_of_no_fault_is_gold() -> None:
    assert not discriminates(RIGHT, CASE)
    expected = gold(CASE).values
    found = mutated_gold(RIGHT, CASE)
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert float((found[name] - value).abs().max()) < 1e-12


def test_what_roundings_may_hide_is_no_survivor() -> None:
    case = CASE.but(dtype="bfloat16", direction="fwd")
    limit = 1e-3 / judge(case, mutated_gold(_scaled(1e-3), case), gold(case)).margins["o"].gain
    for sign in (1, -1):
        assert not discriminates(_scaled(sign * 0.99 * limit), case)
        assert discriminates(_scaled(sign * 1.01 * limit), case)
        assert not is_certain(_scaled(sign * 1.01 * limit), case)
        assert is_certain(_scaled(sign * 2 * limit), case)
    assert is_certain(FAULTS["nan-at-end"], case)


def _scaled(by: float) -> Fault:
    def maths(call: Call) -> Outputs:
        outputs = right(call)
        return {**outputs, "o": outputs["o"] * (1 + by)}

    return wrong("scaled", "outputs are too large", maths)


def test_a_fault_that_no_case_can_tell_survives() -> None:
    finding = hunt(RIGHT, CONTRACTS["linear_attn"])
    assert finding.survives
    assert finding.sightings == ()
    assert finding.level == ""


def test_a_case_that_can_tell_and_passes_is_a_survivor() -> None:
    seen = Sighting("a", "L1", Outcome.FAIL_NUMERIC, "")
    missed = Sighting("b", "L2", Outcome.PASS, "")
    unseen = Sighting("c", "L1", Outcome.NOT_EXECUTED, "")
    assert not Finding("f", "gla", (seen,)).survives
    assert Finding("f", "gla", (seen, missed)).missed == (missed,)
    assert Finding("f", "gla", (seen, unseen)).survives, "what did not run caught nothing"
    assert Finding("f", "gla", (missed, seen)).level == "L1"


@pytest.mark.parametrize(
    "fault", [f for f in FAULTS.values() if f.backward], ids=lambda fault: fault.name
)
def test_faults_of_backward_leave_the_values_right(fault: Fault) -> None:
    contract = next(c for c in CONTRACTS.values() if fault.concerns(c))
    with planted(fault, contract) as target:
        cases = grid(contract, target.declaration, "L2", "ci")
    # Cheap to check on one call: the smallest that has what the fault needs.
    case = min((c for c in cases if fault.may_show(c)), key=lambda c: c.sizes["T"] or 999)
    found, expected = mutated_gold(fault, case), gold(case).values
    for spec in contract.outputs_for(case.features):
        error = (found[spec.name] - expected[spec.name]).abs()
        assert not error.numel() or float(error.max()) < 1e-9


def test_laws_are_asked_on_request() -> None:
    finding = hunt(FAULTS["alone-otherwise"], CONTRACTS["linear_attn"], every_law=True)
    assert "pack" in finding.laws


def test_command_lists_what_was_caught(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    arguments = ["faults", "--op", "linear_attn", "--fault", "o-*", "--json", str(path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "1 of 1 caught" in done.stdout
    (row,) = json.loads(path.read_text(encoding="utf-8"))["findings"]
    assert row["fault"] == "o-scaled"
    assert row["level"] == "L1"
    assert not row["survives"]


def test_command_fails_when_one_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAULTS, "right", RIGHT)
    done = CliRunner().invoke(app, ["faults", "--op", "linear_attn", "--fault", "right"])
    assert done.exit_code == 1
    assert "survives" in done.stdout
    assert "no case can tell it" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--fault", "nothing-like-it"], "no fault matches 'nothing-like-it'"),
        (["--budget", "7"], "must be ci or full, got '7'"),
    ],
)
def test_command_says_what_it_does_not_understand(arguments: list[str], text: str) -> None:
    done = CliRunner().invoke(app, ["faults", *arguments])
    assert done.exit_code == 2
    assert text in done.output
