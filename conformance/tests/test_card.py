"""L0: each way in which a plugin can be wrong before anything is computed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fla_conformance.card import declaration_problem, first_device, plugin_results
from fla_conformance.result import Outcome
from fla_core.contracts import GLA
from fla_core.domain import Domain
from fla_core.plugins import Implementation
from fla_core.plugins.record import Origin, PluginRecord
from planted import PLUGIN, RIGHT, Site

RIGHT_ONE = Implementation("gla", GLA.revision, "x", len, len, Domain(("float32",)))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return Site(folder)


def last(site: Site, name: str, device: str = "cpu") -> tuple[str, Outcome, str]:
    record = PluginRecord(name, Origin("planted"), f"planted_{name}.plugin")
    *before, final = plugin_results(record, device)
    assert all(result.outcome is Outcome.PASS for result in before)
    return final.id, final.outcome, final.detail


def test_a_right_plugin_passes_every_check(site: Site) -> None:
    site.plant("right")
    assert last(site, "right") == ("plugin/clean-import", Outcome.PASS, "")
    assert first_device(PluginRecord("right", Origin(""), "planted_right.plugin")) == "cpu"


@pytest.mark.parametrize(
    ("line", "check", "outcome", "words"),
    [
        ("import os; os.abort()", "card", Outcome.CRASH, "the process died of SIGABRT"),
        ("raise RuntimeError('no driver')", "card", Outcome.FAIL_LAW, "no driver"),
        ("import torch", "discovery", Outcome.FAIL_LAW, "loads torch"),
    ],
)
def test_a_plugin_that_cannot_be_imported_lightly(
    site: Site, line: str, check: str, outcome: Outcome, words: str
) -> None:
    site.plant("bad", plugin=f"\n    {line}\n{PLUGIN}")
    name, ended, detail = last(site, "bad")
    assert (name, ended) == (f"plugin/{check}", outcome)
    assert words in detail


def test_a_missing_toolchain_is_named_with_what_to_install(site: Site) -> None:
    lacking = 'requires=("no-such-toolchain>=3", "nor-this"), description='
    site.plant("bare", plugin=PLUGIN.replace("description=", lacking))
    name, outcome, detail = last(site, "bare")
    assert (name, outcome) == ("plugin/card", Outcome.NOT_EXECUTED)
    assert detail == (
        "needs no-such-toolchain>=3, which is not installed:"
        " pip install 'no-such-toolchain>=3' 'nor-this'"
    )


SPOILS = """
    import os, random, torch
    os.environ["MINE"] = "1"
    random.seed(1)
    torch.manual_seed(7)
    torch.set_default_dtype(torch.float64)
    torch.softmax = torch.Tensor.sum = lambda *arguments: None
"""


def test_kernels_that_change_what_is_not_theirs(site: Site) -> None:
    site.plant("bad", kernels=SPOILS + RIGHT)
    name, outcome, detail = last(site, "bad")
    assert (name, outcome) == ("plugin/clean-import", Outcome.FAIL_LAW)
    changes = detail.removeprefix("loading the plugin changes ").split("; ")
    assert sorted(changes) == [
        "default dtype torch.float32 -> torch.float64",
        "environment variable MINE",
        "the seed of random",
        "the seed of torch",
        "torch.Tensor.sum (replaced)",
        "torch.softmax (replaced)",
    ]


def test_kernels_that_cannot_be_imported(site: Site) -> None:
    site.plant("bad", kernels="import missing_toolchain")
    name, outcome, detail = last(site, "bad")
    assert (name, outcome) == ("plugin/clean-import", Outcome.FAIL_LAW)
    assert "No module named 'missing_toolchain'" in detail


def test_a_probe_that_says_no(site: Site) -> None:
    site.plant("no", plugin=PLUGIN.replace('Probe(True, arch="toy1")', 'Probe(False, "too old")'))
    assert last(site, "no") == (
        "plugin/probe",
        Outcome.NOT_EXECUTED,
        "fla_probe('cpu') says no: too old",
    )


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        ('Probe(False, "a kernel went wrong", arch="toy1")', "says no: a kernel went wrong"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_probe_that_saw_the_device_and_failed(site: Site, answer: str, detail: str) -> None:
    site.plant("no", plugin=PLUGIN.replace('Probe(True, arch="toy1")', answer))
    name, outcome, found = last(site, "no")
    assert (name, outcome) == ("plugin/probe", Outcome.FAIL_LAW)
    assert detail in found


def test_a_device_that_the_card_does_not_name(site: Site) -> None:
    site.plant("right")
    name, outcome, detail = last(site, "right", "xpu:0")
    assert (name, outcome) == ("plugin/probe", Outcome.NOT_EXECUTED)
    assert "the card does not name 'xpu'; it serves cpu" in detail


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"revision": GLA.revision + 1}, f"this core has {GLA.revision}"),
        ({"domain": Domain(("int8",))}, "dtype int8 is not in the contract"),
        ({"claims": frozenset({"fast"})}, "claim 'fast' cannot be proved"),
        ({"forward": "json:nothing"}, "forward: json:nothing cannot be loaded"),
        ({"backward": "json:__name__"}, "backward: json:__name__ is a str, not a function"),
    ],
)
def test_declarations(changes: dict[str, object], words: str) -> None:
    assert declaration_problem(GLA, RIGHT_ONE) == ""
    assert words in declaration_problem(GLA, replace(RIGHT_ONE, **changes))  # type: ignore[arg-type]
