"""Boundary honesty both ways."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fla_conformance import boundary
from fla_conformance.edges import edges
from fla_conformance.reach import fits
from fla_conformance.result import Outcome, Result
from fla_conformance.run import Target, targets
from fla_conformance.sense import contradiction, sizes_of
from fla_conformance.suite import Settings
from fla_conformance.violations import outside
from fla_core.contracts import CONTRACTS
from fla_core.domain import AxisRange, Domain, Relation
from fla_core.plugins.api import Implementation
from plugins_in_process import implementation, installed

NARROW = Domain(
    dtypes=("bfloat16", "float32"),
    axes={
        "K": AxisRange(choices=(16, 32)),
        "V": AxisRange(8, 64, 8),
        "T": AxisRange(16, None, 16),
        "H": AxisRange(1, 4),
        "B": AxisRange(1, 2),
    },
    relations=(Relation("at_most", ("V", "K")), Relation("product_at_most", ("K", "H"), 64)),
    features={"g": "required", "initial_state": "optional", "varlen": "optional"},
)


def narrow(**changes: Any) -> Implementation:
    return implementation("simple_gla", domain=NARROW, **changes)


def results(target: Target, law: str, budget: int = 3) -> list[Result]:
    contract = CONTRACTS[target.declaration.contract]
    found = boundary.checks(contract, target.declaration, Settings(budget=budget))
    return [check.run(target) for check in found if check.law == law]


def test_violations_are_minimal_and_cover_the_domain() -> None:
    found = list(outside(CONTRACTS["simple_gla"], narrow()))
    subjects = {violation.subject for violation in found}
    assert {"float16", "float64", "K=15", "K=17", "K=31", "K=33", "V=7", "V=9", "V=65"} <= subjects
    assert {"T=15", "T=17", "H=5", "B=0", "B=3", "final_state"} <= subjects
    assert {"not V <= K", "not K * H <= 64"} <= subjects
    for violation in found:
        assert not contradiction(violation.case)
        assert not fits(violation.case, narrow()).ok
    by_subject = {violation.subject: violation.case for violation in found}
    sizes = sizes_of(by_subject["not V <= K"])
    assert sizes["V"] > sizes["K"]
    assert sizes["K"] in (16, 32)
    assert sizes["V"] % 8 == 0


def test_required_features_that_nothing_fills_in_are_violated_too() -> None:
    domain = Domain(features={"initial_state": "required", "final_state": "optional"})
    found = list(outside(CONTRACTS["linear_attn"], implementation("linear_attn", domain=domain)))
    assert "no initial_state" in {violation.subject for violation in found}
    assert "varlen" in {violation.subject for violation in found}


def test_implementation_without_backward_is_asked_for_gradients() -> None:
    found = outside(CONTRACTS["simple_gla"], narrow(backward=None))
    assert "gradients" in {violation.subject for violation in found}


def test_the_ends_of_every_range_are_looked_at() -> None:
    found = dict(edges(CONTRACTS["simple_gla"], narrow(), "bwd"))
    assert set(found) == {"K=16", "K=32", "V=8", "V=32", "H=1", "H=4", "B=1", "B=2"} - {"V=32"}
    assert all(fits(case, narrow()).ok for case in found.values())
    assert {case.direction for case in found.values()} == {"bwd"}


def test_what_is_wrong_at_the_end_of_a_range_is_found() -> None:
    right: Any = narrow().forward

    def forward(call: Any, save: bool) -> Any:
        outputs, residuals = right(call, save)
        return (outputs[0] * (0 if call.q.shape[3] == 32 else 1), *outputs[1:]), residuals

    with installed(narrow(forward=forward)) as (target,):
        found = [row for row in results(target, "inside", 8) if row.case]
    wrong = [row for row in found if row.outcome is Outcome.FAIL_NUMERIC]
    assert wrong
    assert {row.case["sizes"]["K"] for row in wrong} == {32}


def test_a_verifier_is_shown_every_size() -> None:
    def verifier(view: Any) -> tuple[bool, str | None]:
        return (False, "not that one") if view.axes["T"] == 272 else (True, None)

    with installed(narrow(verifier=verifier)) as (target,):
        found = results(target, "inside", 1)
    refused = [row for row in found if row.outcome is Outcome.REFUSED_UNDECLARED]
    assert len(refused) == 2  # forward and backward
    assert all("2 sizes" in row.detail and "not that one" in row.detail for row in refused)


def test_honest_plugin_passes() -> None:
    with installed(narrow()) as (target,):
        inside, outer = results(target, "inside", 6), results(target, "outside")
    assert {result.outcome for result in inside + outer} == {Outcome.PASS}
    assert len(inside) > 8
    assert len(outer) > 15


@pytest.mark.parametrize("target", targets("reference"), ids=lambda t: t.implementation)
def test_reference_is_honest(target: Target) -> None:
    found = [*results(target, "inside", 4), *results(target, "outside")]
    assert {r.outcome for r in found} == {Outcome.PASS}, [r.detail for r in found if r.detail]


def test_samples_are_drawn_when_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundary, "sample", lambda *given: pytest.fail("drawn"))
    one = narrow()
    found = list(boundary.checks(CONTRACTS[one.contract], one, Settings(budget=3)))
    assert len([check for check in found if "/sample" in check.id]) == 6
    assert len({check.id for check in found}) == len(found)


def test_kernel_that_fails_inside_its_domain_is_found() -> None:
    right: Any = implementation("simple_gla").forward

    def picky(call: Any, save: bool) -> Any:
        if call.v.shape[-1] % 16:
            raise ValueError("V must be a multiple of 16")
        return right(call, save)

    with installed(narrow(forward=picky)) as (target,):
        found = Counter(result.outcome for result in results(target, "inside", 12))
    assert found[Outcome.CRASH]


def test_verifier_that_refuses_what_is_declared_is_found() -> None:
    def picky(view: Any) -> tuple[bool, str | None]:
        return (True, None) if view.axes["K"] == 16 else (False, "K must be 16")

    with installed(narrow(verifier=picky)) as (target,):
        found = results(target, "inside", 12)
    outcomes = {result.outcome for result in found}
    assert outcomes == {Outcome.PASS, Outcome.REFUSED_UNDECLARED}
    assert any("K must be 16" in result.detail for result in found)


def test_domain_that_refuses_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Domain, "_check_axes", lambda self, sizes: None)
    with installed(narrow()) as (target,):
        found = _outer(target)
    accepted = [r.detail for r in found if r.outcome is Outcome.ACCEPTED_UNDECLARED]
    assert any(detail.startswith("K=17: the declared domain") for detail in accepted)


def test_dispatch_that_accepts_what_the_domain_refuses_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fla_core.dispatch import candidates

    wide = Domain(dtypes=NARROW.dtypes, features=dict.fromkeys(("g", "varlen"), "optional"))
    monkeypatch.setattr(candidates, "beyond", lambda domain, outer: wide)
    with installed(narrow()) as (target,):
        found = [result for result in _outer(target) if "K=17" in result.detail]
    assert [result.outcome for result in found] == [Outcome.ACCEPTED_UNDECLARED]
    assert "dispatch places it on acme:simple_gla#chunk" in found[0].detail


def _outer(target: Target) -> list[Result]:
    return results(target, "outside")


def test_undeclared_dtypes_leave_no_row_of_their_own() -> None:
    with installed(narrow()) as (target,):
        assert all(result.case == {} for result in _outer(target))
