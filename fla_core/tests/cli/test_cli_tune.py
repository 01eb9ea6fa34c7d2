"""``fla-kernels tune``, on a plugin whose tiles are fast, slow, wrong or deadly by their number."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from command_line import Finished, Invoke, Site

from fla_core.cli.calls.tune import crew
from fla_core.plugins.tuning import Task

PLUGIN = """
import os
from pathlib import Path
from types import ModuleType

from fla_core.contracts import CONTRACTS
from fla_core.domain import Domain
from fla_core.plugins import Backend, Implementation, Probe, hookimpl
from fla_core.plugins.tuning import Task

@hookimpl
def fla_backend():
    return Backend("acme", ("cpu",), "torch", priority=1)

@hookimpl
def fla_probe(device):
    return Probe(True)

@hookimpl
def fla_tuner():
    return "planted_acme:Tuner"

class Tuner:
    def __init__(self, device):
        self.table = Path(os.environ["ACME_TABLE"])

    def tasks(self, contracts):
        sizes = {"B": 1, "T": 65, "H": 1, "K": 16, "V": 16}
        names = {"gla": "chunk_gla", "simple_gla": "chunk_simple_gla"}
        return [
            Task("decay", direction, names[c], sizes, "float32")
            for c in contracts if c in names
            for direction in ("forward", "backward")
        ]

    def candidates(self, task, number, found):
        if number == 0:
            return [{"kind": "slow"}]
        return [{"kind": k} for k in os.environ["ACME_KINDS"].split()] if number == 1 else []

    def serving(self, task, tiles):
        # A clock that no load of the machine disturbs.
        from fla_core.cli.calls.bench import timers
        speed = {"slow": 3.0, "fast": 2.0}.get(tiles["kind"], 1.0)
        timers.milliseconds = lambda call, device, budget: (call(), speed)[1]
        return served(tiles["kind"])

    def document(self, best, facts, earlier):
        if earlier is not None and "entries" not in earlier:
            raise ValueError("no table")
        return {"entries": [
            {"direction": t.direction, "tiles": b.tiles, "ms": b.ms, "default_ms": d.ms}
            for t, b, d in best
        ]}

def served(kind):
    from fla_core.reference.implementations import decay_chunk_backward, decay_chunk_forward

    def forward(call, save):
        (o, *rest), kept = decay_chunk_forward(call, save)
        if kind == "deadly":
            os._exit(7)
        if kind == "raising":
            raise RuntimeError("launch failed")
        # Right in small calls, wrong in the timed one.
        if kind == "wrong" or (kind == "late" and call.q.shape[1] == 65):
            o = o * 1.02
        return (o, *rest), kept

    module = ModuleType("tuned")

    @hookimpl
    def fla_backend():
        return Backend("tuned", ("cpu",), "torch", priority=1)

    @hookimpl
    def fla_implementations():
        names = ("initial_state", "final_state", "varlen", "g", "gk", "gv")
        for name in ("gla", "simple_gla"):
            known = {n: "optional" for n in names if n in CONTRACTS[name].features}
            domain = Domain(("float32",), features=known)
            yield Implementation(name, 1, "chunk", forward, decay_chunk_backward, domain)

    module.fla_backend, module.fla_implementations = fla_backend, fla_implementations
    return module
"""


@pytest.fixture
def planted(site: Site) -> Site:
    site.plant("acme", PLUGIN)
    return site


def tune(site: Site, kinds: str, *more: str) -> Finished:
    table = str(site.folder / "tables" / "chip.json")
    words = ("tune", "gla", "--device", "cpu", "--workers", "1", *more)
    return site.run(*words, "--json", ACME_TABLE=table, ACME_KINDS=kinds)


def test_the_fastest_that_is_right_is_written(planted: Site) -> None:
    done = tune(planted, "wrong raising deadly late fast")
    assert done.code == 0, done.err
    forward, backward = done.json["tasks"]
    assert [one["tiles"] for one in (forward, backward)] == [{"kind": "fast"}] * 2
    assert (forward["best_ms"], forward["default_ms"]) == (2.0, 3.0)
    failures = {c["tiles"]["kind"]: c["failure"] for c in forward["candidates"]}
    assert failures["slow"] == failures["fast"] == ""
    assert failures["wrong"].startswith("dense o ")
    assert failures["raising"] == "RuntimeError: launch failed"
    assert failures["deadly"].startswith("the process ended with status 7")
    assert failures["late"].startswith("slice o ")
    table = json.loads(Path(done.json["out"]).read_text())
    assert [entry["direction"] for entry in table["entries"]] == ["forward", "backward"]
    assert table["entries"][0]["ms"] == forward["best_ms"]


def test_nothing_right_is_nothing_written(planted: Site) -> None:
    table = planted.folder / "elsewhere.json"
    done = tune(planted, "wrong", "--budget", "0.001", "--out", str(table))
    assert done.code == 1
    assert not table.exists()
    assert [one["complete"] for one in done.json["tasks"]] == [False, False]
    assert done.json["out"] is None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("tune gla --plugin acme", "a plugin with tiles to tune on cpu: none"),
        ("tune gla", "a device that plugins have tiles to tune for: none"),
        ("tune glu", "close      gla"),
        ("tune gla --budget 0", "a positive number of seconds"),
        ("tune gla --budget nan", "a positive number of seconds"),
        ("tune gla --workers -1", "0 (one a core) or more processes"),
        ("tune gla --device tpu", "a device of this machine"),
    ],
)
def test_bad_questions(invoke: Invoke, line: str, text: str) -> None:
    device = () if "--device" in line else ("--device", "cpu")
    result = invoke(*line.split(), *device)
    assert result.exit_code == 2
    assert text in result.stderr


@pytest.mark.parametrize(
    ("content", "problem"),
    [("{", "JSONDecodeError: "), ("{}", "ValueError: no table"), (None, "IsADirectoryError: ")],
)
def test_a_table_that_nothing_can_be_added_to(
    planted: Site, content: str | None, problem: str
) -> None:
    table = planted.folder / "table.json"
    if content is None:
        table.mkdir()
    else:
        table.write_text(content)
    done = tune(planted, "deadly", "--out", str(table))
    assert done.code == 2
    said = done.json["error"]["message"]
    assert "a path without a file, or with a table" in said
    assert f"{table}: {problem}" in said


@pytest.mark.parametrize("words", [(), ("--plugin", "acme")])
def test_a_device_without_tiles_is_what_is_wrong(site: Site, words: tuple[str, ...]) -> None:
    site.plant("acme", PLUGIN.replace('("cpu",), "torch", priority=1', '("npu",), "torch"', 1))
    done = site.run("tune", "gla", "--device", "cpu", *words, "--json")
    assert done.code == 2
    said = done.json["error"]["message"]
    assert said.startswith("tune: argument 'device'"), said
    assert "a device that acme has tiles to tune for: npu" in said


def test_other_sizes_are_named(planted: Site) -> None:
    done = tune(planted, "fast", "--size", "64,64")
    assert done.code == 2
    assert "something that acme tunes: 16,16" in done.json["error"]["message"]


def test_a_candidate_that_hangs_is_given_up(planted: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(planted.folder), *sys.path])
    monkeypatch.setattr(crew, "MODULE", "planted_hang")
    (planted.folder / "planted_hang.py").write_text("import time\ntime.sleep(100)\n")
    job = crew.Job(Task("decay", "forward", "chunk_gla", {}, "float32"), {"kind": "slow"}, "time")
    deadline = time.monotonic() + 60
    with crew.Crew("acme", "cpu", 0.01, 1, deadline, silence=0.5) as workers:
        (answer,) = workers.run([job])
    assert answer is not None
    assert answer.failure == "no answer within 0.5 s"
