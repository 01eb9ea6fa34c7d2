"""A crash, a hang and a process that never starts each become rows; everything else goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fla_conformance import isolate
from fla_conformance.report import Report
from fla_conformance.result import Outcome, Result
from fla_conformance.session import Request, load_here
from planted import RIGHT, Site

DEADLY = (
    RIGHT
    + """
    import os, time
    right = forward
    def forward(call, save):
        print("kernels may print")
        if call.tensors["q"].shape[1] == 17:
            os.abort()
        if call.tensors["q"].shape[1] == 130:
            time.sleep(600)
        return right(call, save)
"""
)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "site").mkdir()
    return Site(tmp_path / "site")


def test_each_death_costs_one_check(site: Site, tmp_path: Path) -> None:
    site.plant("deadly", kernels=DEADLY)
    options = ("--level", "L1", "--isolate", "--timeout", "8", "--only", "*.T1[237]*")
    done = site.suite("run", "deadly", *options, "--json", "r.json")
    report = Report.read(tmp_path / "r.json")
    assert done.code == 1, done.err
    ended = {row.outcome.value: row for row in report.failures}
    assert set(ended) == {"crash", "timeout"}
    assert ended["crash"].detail.startswith("the process died of SIGABRT")
    assert ended["crash"].case["sizes"]["T"] == 17
    assert ended["timeout"].detail == "no answer within 8 s"
    assert ended["timeout"].case["sizes"]["T"] == 130
    assert report.counts["pass"] >= 1
    assert report.header["complete"]
    assert report.header["host"]["arch"] == "toy1"
    assert list((tmp_path / ".fla-conformance" / "cases").glob("*.json"))


def test_a_child_that_never_starts_is_not_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared = load_here(Request("reference", op="linear_attn", level="L1", budget=2), "cpu")
    monkeypatch.setattr(isolate.sys, "executable", "/bin/false")
    begun: list[Any] = []
    ended: list[Result] = []
    found = list(isolate.run_isolated(prepared, prepared.tasks, begun.append, ended.append))
    assert found == ended
    assert begun == []
    assert [row.id for row in found] == [task.id for task in prepared.tasks]
    outcomes = [row.outcome for row in found if row.implementation.endswith("#chunk")]
    assert outcomes == [Outcome.CRASH, Outcome.NOT_EXECUTED, Outcome.NOT_EXECUTED]
    assert found[0].detail == "the process ended with status 1"
