"""JSON lines outlive the process that wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fla_conformance.report.merge import read
from fla_conformance.result import Outcome
from fla_conformance.stream import Past, ResumeError, Stream
from rows import HEADER, row

KEY = ("acme:gla#chunk", "L2", "gla@1/x")


def test_what_was_written_is_there_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.jsonl"
    stream = Stream.new(path, HEADER)
    stream.begin(KEY)
    past = Past(path)
    assert past.died == KEY
    stream.end(row("L1"))
    past = Past(path)
    assert past.died is None
    assert list(past.results.values()) == [row("L1")]
    with Stream.append(path) as again:
        again.end(row("L1", Outcome.CRASH))
    assert [r.outcome for r in Past(path).results.values()] == [Outcome.CRASH]


def test_a_line_that_was_cut_is_the_end(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Stream.new(path, HEADER) as stream:
        stream.end(row("L1"))
        stream.begin(KEY)
    whole = path.read_text()
    path.write_text(whole + '{"row": {"id": "gl')
    assert Past(path).died == KEY
    assert read(path).counts == {"pass": 1}


def test_a_run_goes_on_behind_a_line_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    Stream.new(path, HEADER).__exit__(None, None, None)
    for text in ('{"row": {"id": "gl', ""):
        path.write_text(path.read_text() + text)
        with Stream.append(path) as stream:
            stream.end(row("L1"))
    assert list(Past(path).results.values()) == [row("L1")]


def test_an_interrupt_is_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    stream = Stream.new(path, HEADER)
    stream.begin(KEY)
    stream.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert Past(path).died is None


def test_another_run_is_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    Stream.new(path, HEADER).__exit__(None, None, None)
    Past(path).check({**HEADER, "started": "later", "argv": []})
    other = {**HEADER["selection"], "budget": "full"}
    with pytest.raises(ResumeError, match="selection differs"):
        Past(path).check({**HEADER, "selection": other})


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "does not begin"), ("{}\nno\n{}\n", "line 2"), ('{"row": {}}\n{}', "line 1: 'case'|'")],
)
def test_files_that_are_no_runs(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(ResumeError, match=problem):
        Past(path)
    with pytest.raises(ResumeError, match="no run to resume"):
        Past(tmp_path / "absent.jsonl")
