"""A crash, a hang and a process that never starts each become rows; everything else goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from fla_conformance.report import Report
from planted import RIGHT, Site

DEADLY = (
    RIGHT
    + """
    import os, time
    right = forward
    def forward(call, save):
        print("kernels may print")
        if call.seqlens is None and call.tensors["q"].shape[1] == 17:
            os.abort()
        if call.tensors["q"].shape[1] == 63:
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
    options = ("--level", "L1", "--isolate", "--timeout", "25", "--budget", "full")
    done = site.suite("run", "deadly", *options, "--json", "r.json")
    report = Report.read(tmp_path / "r.json")
    assert done.code == 1, done.err
    ended = {row.outcome.value: row for row in report.failures}
    assert set(ended) == {"crash", "timeout"}
    assert ended["crash"].detail.startswith("the process died of SIGABRT")
    assert ended["crash"].case["sizes"]["T"] == 17
    assert ended["timeout"].detail == "no answer within 25 s"
    assert ended["timeout"].case["sizes"]["T"] == 63
    assert report.counts["pass"] > 6
    assert report.header["complete"]
    assert report.header["host"]["arch"] == "toy1"
    assert list((tmp_path / ".fla-conformance" / "cases").glob("*.json"))
