"""What ``pytest --pyargs fla_conformance --fla-plugin NAME`` collects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fla_conformance.levels import TOLERATED
from fla_conformance.result import Margin, Outcome, Result


def test_check(
    fla_item: Any,
    fla_judge: Callable[[Any], Result],
    record_property: Callable[[str, object], None],
) -> None:
    result = fla_judge(fla_item)
    record_property("outcome", result.outcome.value)
    if isinstance(result.margin, Margin):
        record_property("margin", result.margin.worst)
    if result.outcome is Outcome.XFAIL:
        pytest.xfail(result.expected)
    if result.outcome is Outcome.REFUSED_DECLARED:
        pytest.skip(f"refused as declared: {result.detail}")
    if result.outcome not in TOLERATED:
        pytest.fail(f"{result.outcome.value}: {result.detail}", pytrace=False)


def test_expectations_are_in_order(fla_problems: list[str]) -> None:
    if fla_problems:
        pytest.fail("\n".join(fla_problems), pytrace=False)
