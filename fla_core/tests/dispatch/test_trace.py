"""FLA_TRACE reports what was decided and what ran."""

from __future__ import annotations

import io
import json
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from fakes import implementation, plan, plugin
from fla_core.dispatch.runtime import RUNTIME
from fla_core.errors import NoImplementationError, PolicyError


def test_off_is_silent_and_free(install: Any, capsys: pytest.CaptureFixture[str]) -> None:
    declared = implementation()
    install(plugin("acme", declared))
    assert plan().forward is declared.forward
    assert capsys.readouterr().err == ""


def test_decisions(install: Any, capsys: pytest.CaptureFixture[str]) -> None:
    install(plugin("acme"), environ={"FLA_TRACE": "decisions"})
    made = plan()
    plan()
    made.forward(None, False)
    assert capsys.readouterr().err == f"fla: {made.decision.render()}\n"


def test_calls(install: Any, capsys: pytest.CaptureFixture[str]) -> None:
    install(plugin("acme"), environ={"FLA_TRACE": "calls"})
    made = plan()
    capsys.readouterr()
    assert made.forward(None, False) == ((), ())
    assert made.backward is not None
    assert made.backward(None, (), (), frozenset()) == {}
    assert capsys.readouterr().err.splitlines() == [
        "fla: chunk_gla: forward of acme:gla#chunk",
        "fla: chunk_gla: backward of acme:gla#chunk",
    ]


def test_json_lines(install: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    install(plugin("acme"), environ={"FLA_TRACE": f"calls:{path}"})
    plan().forward(None, False)
    with pytest.raises(NoImplementationError):
        plan("kda", policy="acme")
    plan_, call, refused = map(json.loads, path.read_text().splitlines())
    assert (plan_["event"], plan_["chosen"]) == ("plan", "acme:gla#chunk")
    assert call == {
        "event": "call",
        "operator": "chunk_gla",
        "direction": "forward",
        "plan": "acme:gla#chunk",
    }
    assert (refused["event"], refused["chosen"]) == ("refused", None)
    assert capsys.readouterr().err == ""


def test_a_path_that_cannot_be_written(install: Any, tmp_path: Path) -> None:
    install(plugin("acme"), environ={"FLA_TRACE": f"decisions:{tmp_path}/no/such/dir"})
    with pytest.raises(PolicyError, match="No such file or directory"):
        plan()


def test_a_file_that_goes_away_costs_a_warning_and_no_call(install: Any, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    install(plugin("acme"), environ={"FLA_TRACE": f"calls:{folder}/trace.jsonl"})
    made = plan()
    shutil.rmtree(folder)
    with pytest.warns(RuntimeWarning, match="FLA_TRACE cannot write to .*events are lost"):
        assert made.forward(None, False) == ((), ())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made.forward(None, False) == ((), ())
        plan("gla", K=32)


def test_a_stream_that_is_closed_costs_no_call(
    install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(plugin("acme"), environ={"FLA_TRACE": "calls"})
    made = plan()
    for stream in (io.StringIO(), None):
        if stream is not None:
            stream.close()
        monkeypatch.setattr(sys, "stderr", stream)
        with pytest.warns(RuntimeWarning, match="cannot write to stderr"):
            assert made.forward(None, False) == ((), ())
        RUNTIME.trace._said.clear()
