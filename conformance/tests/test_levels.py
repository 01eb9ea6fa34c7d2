"""Levels are computed from results, and never higher than what was seen."""

from __future__ import annotations

import pytest

from fla_conformance.levels import LEVELS, TOLERATED, Standing, standings, up_to
from fla_conformance.result import Outcome, Result
from fla_core.contracts import GLA
from rows import case, plugin_row, row


def only(*results: Result, claims: bool = True) -> Standing:
    (found,) = standings(results, "sm90", claims)
    return found


def test_a_level_needs_a_pass_and_every_level_below() -> None:
    assert only(plugin_row(), row("L1")).level == "L1"
    assert only(plugin_row(), row("L1"), row("L2"), row("L3")).level == "L3"
    assert only(plugin_row(), row("L2")).level == "L0"
    assert only(row("L1")).level == ""


@pytest.mark.parametrize("outcome", [o for o in Outcome if o not in TOLERATED])
def test_whatever_is_not_tolerated_stands_in_the_way(outcome: Outcome) -> None:
    failed = row("L2", outcome, of=case(seed=1))
    assert only(plugin_row(), row("L1"), row("L2"), failed).level == "L1"


@pytest.mark.parametrize("outcome", sorted(TOLERATED - {Outcome.PASS}))
def test_what_is_tolerated_proves_nothing(outcome: Outcome) -> None:
    extra = row("L2", outcome, of=case(seed=1))
    assert only(plugin_row(), row("L1"), extra).level == "L1"
    assert only(plugin_row(), row("L1"), row("L2"), extra).level == "L2"


def test_a_fault_of_the_plugin_concerns_every_implementation() -> None:
    wrong = plugin_row(Outcome.FAIL_LAW, "probe")
    found = standings([plugin_row(), wrong, row("L1"), row("L1", variant="other")], "sm90")
    assert [standing.level for standing in found] == ["", ""]


def test_dtypes_stand_for_themselves_and_share_checks_without_a_dtype() -> None:
    shared = Result("declaration", "acme:gla#chunk", "L0", Outcome.PASS)
    half = row("L1", Outcome.FAIL_NUMERIC, of=case(dtype="float16"))
    found = standings([shared, row("L1"), half], "sm90")
    assert {standing.dtype: standing.level for standing in found} == {
        "bfloat16": "L1",
        "float16": "L0",
    }


def test_a_run_that_is_not_whole_reaches_no_level() -> None:
    assert only(plugin_row(), row("L1"), claims=False).level == ""


def test_badge_is_computed() -> None:
    standing = only(plugin_row(), row("L1"), row("L1", Outcome.XFAIL, of=case(seed=1)))
    assert standing.badge == f"gla@{GLA.revision} · L1 · bf16 · sm90 · 1 xfail"
    assert only(row("L1")).badge == f"gla@{GLA.revision} · no level · bf16 · sm90"


def test_up_to() -> None:
    assert up_to("L2") == LEVELS[:3]
    with pytest.raises(ValueError, match="L0, L1, L2, L3, L4, got 'L9'"):
        up_to("L9")
