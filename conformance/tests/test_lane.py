"""Random cases: built inside the declared domain, shrunk when they fail, reproducible."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from fla_conformance import lane
from fla_conformance.case import Case
from fla_conformance.cases import read_case
from fla_conformance.draw import ROOM
from fla_conformance.expect import Expectation, Expectations
from fla_conformance.reach import fits, view_of
from fla_conformance.result import Outcome
from fla_conformance.run import targets
from fla_conformance.sense import contradiction
from fla_conformance.strategy import Space, cases, sample
from fla_conformance.suite import Settings
from fla_core.contracts import CONTRACTS
from fla_core.domain import AxisRange, Domain, Relation
from plugins_in_process import implementation, installed

ODD = Domain(
    dtypes=("float16",),
    axes={
        "K": AxisRange(choices=(24, 40)),
        "V": AxisRange(low=20, multiple_of=20),
        "T": AxisRange(low=3, multiple_of=3),
        "HV": AxisRange(multiple_of=4, low=4),
        "N": AxisRange(1, 2),
    },
    relations=(Relation("at_most", ("K", "V")), Relation("product_at_most", ("V", "T"), 800)),
    features={"g": "optional", "beta": "required", "varlen": "required", "gva": "optional"},
)

HALF = Domain(
    dtypes=("float16",), features=dict.fromkeys(("initial_state", "final_state"), "optional")
)
"""Of float16 alone, in which core does not leave a call that is to be normalised."""

DECLARED = [
    *(target.declaration for target in targets("reference")),
    implementation("linear_attn", domain=HALF),
    implementation("gated_delta_rule", domain=ODD),
]


@pytest.mark.parametrize("declared", DECLARED, ids=lambda one: f"{one.contract}#{one.variant}")
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_samples_lie_in_the_declared_domain(declared: Any, direction: Any) -> None:
    found = sample(declared, direction, 12, seed=1)
    for case in found:
        assert contradiction(case) == ""
        assert fits(case, declared).ok, case.id
        assert CONTRACTS[case.contract].domain.check(view_of(case)).ok
    assert found == sample(declared, direction, 12, seed=1)
    assert len({case.id for case in found}) > 9


@pytest.mark.parametrize("variant", ["chunk", "recurrent"])
def test_every_feature_that_is_served_is_drawn(variant: str) -> None:
    declared = implementation("gated_delta_rule", variant)
    drawn = {name for case in sample(declared, "fwd", 40, 0) for name in case.features}
    served = set(CONTRACTS["gated_delta_rule"].features)
    assert drawn == (served if variant == "recurrent" else served - {"gv", "beta_v"})


def test_no_feature_is_drawn_that_ends_in_a_dtype_which_is_not_served() -> None:
    declared = implementation("linear_attn", domain=HALF)
    drawn = {name for case in sample(declared, "bwd", 40, 0) for name in case.features}
    assert drawn == {"initial_state", "final_state", "narrow_state", "reverse"}


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_the_delta_rule_has_room_for_its_tokens(direction: Any) -> None:
    for case in sample(implementation("kda"), direction, 200, 0):
        longest = max(case.lengths or (), default=0) or (case.lengths is None) * case.sizes["T"]
        assert case.sizes["K"] >= ROOM or longest <= 1, case.id


@given(case=cases(DECLARED[-1], "bwd"))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_hypothesis_builds_rather_than_filters(case: Case) -> None:
    assert fits(case, DECLARED[-1]).ok


def test_domain_without_small_sizes_says_so() -> None:
    domain = Domain(axes={"K": AxisRange(64, 64), "T": AxisRange(64, 64)}, relations=(_tiny(),))
    space = Space(implementation("simple_gla", domain=domain), "fwd")
    with pytest.raises(ValueError, match="simple_gla#chunk: no small sizes"):
        space.build(lambda items: items[0])


def _tiny() -> Relation:
    return Relation("product_at_most", ("K", "T"), 10)


def _wrong_when_wide(call: Any, save: bool) -> Any:
    forward: Any = implementation("simple_gla").forward
    outputs, residuals = forward(call, save)
    if call.v.shape[-1] > 8 and call.initial_state is not None:
        outputs = (outputs[0] * 1.5, *outputs[1:])
    return outputs, residuals


def test_failing_case_is_shrunk_and_comes_back(tmp_path: Path) -> None:
    with installed(implementation("simple_gla", forward=_wrong_when_wide)) as (target,):
        found = lane.explore(target, "fwd", examples=60, seconds=30)
        assert found.failure is not None
        case = Case.from_json(found.failure.case)
        path = lane.save_case(case, tmp_path)
        assert read_case(path) == case
        assert lane.run_case(case, target).outcome is Outcome.FAIL_NUMERIC
    assert found.failure.outcome is Outcome.FAIL_NUMERIC
    assert case.sizes["V"] == 16  # the narrowest that fails
    assert (case.sizes["T"], case.sizes["H"], case.sizes["K"], case.seed) == (1, 1, 1, 0)
    assert case.features == {"initial_state"}
    assert json.loads(path.read_text())["contract"] == "simple_gla"


def test_check_reports_the_smallest_failure_or_what_was_run() -> None:
    contract = CONTRACTS["simple_gla"]
    with installed(implementation("simple_gla", forward=_wrong_when_wide)) as (target,):
        checks = list(lane.checks(contract, target.declaration, Settings(budget=60)))
        wrong = checks[0].run(target)
    assert [check.id for check in checks] == [
        f"simple_gla@{contract.revision}/{direction}/random/s0" for direction in ("fwd", "bwd")
    ]
    assert wrong.outcome is Outcome.FAIL_NUMERIC
    assert wrong.case["sizes"]["V"] == 16
    assert "initial_state" in wrong.detail
    with installed(implementation("simple_gla")) as (target,):
        right = checks[0].run(target)
    assert right.outcome is Outcome.PASS
    assert "random cases, seed 0" in right.detail


def test_same_seed_gives_the_same_cases() -> None:
    with installed(implementation("linear_attn")) as (target,):
        first, second = (lane.explore(target, "fwd", 6, 30, number=5) for _ in range(2))
    assert (first.ran, first.failure) == (second.ran, None)


def test_time_ends_the_search() -> None:
    with installed(implementation("linear_attn")) as (target,):
        found = lane.explore(target, "bwd", 500, seconds=0.3)
    assert found.stopped
    assert found.failure is None
    assert found.ran < 200


def test_random_cases_keep_out_of_regions_where_failures_are_expected() -> None:
    entry = Expectation(
        1,
        {"op": "simple_gla", "V": ">8"},
        {},
        Outcome.FAIL_NUMERIC,
        "bug",
        "wide values are wrong",
        date.max,
    )
    with installed(implementation("simple_gla", forward=_wrong_when_wide)) as (target,):
        found = lane.explore(target, "fwd", 40, 30, expectations=Expectations((entry,)))
    assert found.failure is None
    assert found.skipped
    assert found.ran
