"""The sample plugins: what is right passes, what is wrong is caught and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planted import Site
from samples import install, names

ISOLATED = ("--isolate", "--timeout", "60")
ODD = "linear_attn@1/fwd/fp32/chunk/B2.T65.H2.HV2.K16.V8/base/plain/s0"
SINGLE = "linear_attn@1/fwd/fp32/chunk/B1.T1.H1.HV1.K64.V64/final_state+initial_state/plain/s0"


@pytest.fixture
def examine(tmp_path: Path) -> Any:
    """A function that installs one sample and runs the suite on it; returns code and report."""

    def run(name: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        site = Site(tmp_path / "site")
        install(name, tmp_path / "wheels", site.folder)
        report = tmp_path / "report.json"
        plugin = f"sample-{name.replace('_', '-')}"
        done = site.suite("run", plugin, "--json", str(report), *arguments)
        assert report.exists(), done.err
        return done.code, json.loads(report.read_text(encoding="utf-8"))

    return run


def failures(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [case for case in report["cases"] if case["outcome"] != "pass"]


def levels(report: dict[str, Any]) -> dict[str, str]:
    return {row["dtype"]: row["level"] for row in report["summary"]}


def test_every_sample_is_tested() -> None:
    tested = {"correct", "numeric_fault", "partial", *HOSTILE}
    assert tested == set(names())


def test_correct_climbs_from_l0_to_l4_in_every_dtype(examine: Any) -> None:
    code, report = examine("correct", "--level", "L4")
    assert code == 0, failures(report)[:3]
    assert levels(report) == {"bfloat16": "L4", "float16": "L4", "float32": "L4"}


def test_partial_passes_what_it_declares(examine: Any) -> None:
    code, report = examine("partial", "--level", "L3")
    assert code == 0, failures(report)[:3]
    assert levels(report) == {"float32": "L1"}, "without a backward L1 is all there is"


def test_numeric_fault_is_named(examine: Any) -> None:
    code, report = examine("numeric_fault", "--level", "L1")
    assert code == 1
    failed = failures(report)
    assert {case["outcome"] for case in failed} == {"fail.numeric"}
    assert all("o: " in case["detail"] and "times the limit" in case["detail"] for case in failed)
    limits = [[case["margin"][name] for name in ("block", "token", "gain")] for case in failed]
    assert all(max(margins) > 1 for margins in limits)


HOSTILE = {
    "hostile_signal": ("crash", "SIGSEGV", ("--level", "L1", "--only", ODD, *ISOLATED)),
    "hostile_exit": ("crash", "ended with status 0", ("--level", "L1", "--only", ODD, *ISOLATED)),
    "hostile_hang": (
        "timeout",
        "no answer within",
        ("--level", "L1", "--only", SINGLE, "--isolate", "--timeout", "30"),
    ),
    "hostile_patch": ("fail.law", "torch.nn.functional.softplus", ("--level", "L0")),
    "hostile_scribble": (
        "fail.law",
        "changed the bytes of q",
        ("--level", "L1", "--only", SINGLE),
    ),
    "hostile_boast": (
        "crash",
        "no kernel for this head size",
        ("--level", "L1", "--only", "*.K17.*"),
    ),
    "hostile_refuse": (
        "fail.law",
        "verifier raised ZeroDivisionError",
        ("--level", "L1", "--only", SINGLE),
    ),
}
"""Outcome, a piece of its detail, and the arguments under which it is found."""


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_is_caught(name: str, examine: Any) -> None:
    outcome, text, arguments = HOSTILE[name]
    code, report = examine(name, *arguments)
    assert code == 1
    failed = failures(report)
    assert {case["outcome"] for case in failed} == {outcome}
    assert all(text in case["detail"] for case in failed)
