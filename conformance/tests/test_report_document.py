"""The report is one document, the same for the same results, and checked against its schema."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fla_conformance.report import Report, ReportError
from fla_conformance.report.document import check
from fla_conformance.report.merge import merge, read
from fla_conformance.report.rows import from_row, to_row
from fla_conformance.result import Margin, Outcome
from rows import case, margin, plugin_row, report, row

ROWS = (
    plugin_row(),
    row("L1", margin=margin(0.4), plan="acme:gla#chunk (lowered: l2norm)", seconds=0.25),
    row("L2", Outcome.FAIL_NUMERIC, margin=margin(3.0)),
    row("L3", Outcome.FAIL_LAW, law="pack"),
)


def test_reads_back_what_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    written = report(*ROWS, problems=("something",))
    written.write(path)
    assert Report.read(path) == written
    assert read(path) == written


def test_order_of_running_does_not_show() -> None:
    assert report(*ROWS).to_json() == report(*reversed(ROWS)).to_json()


def test_margins_that_are_not_finite_survive_json() -> None:
    wild = row("L1", Outcome.FAIL_NUMERIC, margin=Margin(math.nan, math.inf, "o", 1.0))
    data = json.loads(json.dumps(to_row(wild), allow_nan=False))
    assert data["margin"] == {"block": None, "token": None, "gain": 0.0, "ratio": 1.0, "name": "o"}
    assert from_row(data).margin == Margin(math.inf, math.inf, "o", 1.0)


def test_ok_takes_a_pass_an_end_and_no_fault() -> None:
    assert report(plugin_row()).ok
    assert not report().ok
    assert not report(plugin_row(), complete=False).ok
    assert not report(plugin_row(), problems=("expired",)).ok
    assert not report(plugin_row(), row("L1", Outcome.XPASS, expected="x")).ok
    assert report(plugin_row(), row("L1", Outcome.XFAIL, expected="x")).ok


def test_summary_is_computed() -> None:
    (entry,) = report(*ROWS).to_json()["summary"]
    assert entry["level"] == "L1"
    assert entry["counts"]["L2"] == {"fail.numeric": 1}
    narrowed = {**report().header["selection"], "only": "gla*"}
    assert report(*ROWS, selection=narrowed).to_json()["summary"][0]["level"] == ""


def spoilt(**changes: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(report(*ROWS).to_json()))
    data["cases"][1] |= changes
    return data


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "passed"},
        {"outcome": "crash", "detail": "died"},  # a crash has no margin
        {"margin": {"block": 2.0, "token": 0.1, "name": "o", "ratio": 0.1}},  # no pass
        {"outcome": "fail.numeric"},  # without a word
        {"outcome": "xfail", "detail": "known"},  # without a reason
        {"expected": "a reason"},  # of a pass
        {"level": "L7"},
        {"colour": "green"},
    ],
)
def test_schema_refuses(changes: dict[str, Any]) -> None:
    check(spoilt(), "r.json")
    with pytest.raises(ReportError, match=r"r\.json is not a fla-conformance-report/1: \$"):
        check(spoilt(**changes), "r.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "fla-conformance-report/2"}'])
def test_other_files_are_no_reports(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ReportError, match=r"other\.json"):
        Report.read(path)


def test_parts_become_one_and_later_rows_count() -> None:
    first = report(plugin_row(), row("L1", Outcome.CRASH), problems=("old",))
    again = report(row("L1"), row("L2", of=case(direction="bwd")), problems=("old", "new"))
    both = merge([first, again])
    assert both.counts == {"pass": 3}
    assert both.problems == ("old", "new")
    assert both.header["seconds"] == 3.0


def test_parts_of_different_machines_stay_apart() -> None:
    other = {**report().header["host"], "arch": "n2"}
    with pytest.raises(ReportError, match=r"host differs.*n1.*n2"):
        merge([report(), report(host=other)])
