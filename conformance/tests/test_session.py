"""A run from the name of a plugin to its report, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fla_conformance import session
from fla_conformance.result import Outcome, Result
from fla_conformance.session import Request, RunError, find_plugin, folder_of, load_here, run
from fla_conformance.stream import Past, ResumeError

ONE = "reference:linear_attn#chunk"


def asked(**changes: Any) -> Request:
    return Request("reference", **{"op": ONE, "level": "L1", "budget": 3, **changes})


def test_a_run_keeps_its_rows_and_can_be_resumed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    told: list[Result] = []
    prepared = load_here(asked(), "cpu")
    report = run(prepared, path, tell=told.append)
    assert report.ok
    assert [r.level for r in report.results] == ["L0", "L1", "L1", "L1"]
    assert sorted(told, key=lambda r: (r.level, r.id)) == list(report.results)
    assert [r.id for r in Past(path).results.values()] == [r.id for r in told]

    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-2]) + "\n")  # before the last check
    told.clear()
    again = run(prepared, path, resume=True, tell=told.append)
    assert [r.id for r in again.results] == [r.id for r in report.results]
    assert len(told) == 4
    assert len(path.read_text().splitlines()) == len(lines)


def test_the_check_that_ended_the_process_is_a_crash_of_the_resumed_run(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    prepared = load_here(asked(), "cpu")
    run(prepared, path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-1]) + "\n")  # it began and never ended
    report = run(prepared, path, resume=True)
    assert report.counts == {"pass": 3, "crash": 1}
    assert report.failures[0].detail == "the process ended, or was killed, while this check ran"
    # Written down, so that a run which dies again elsewhere does not come back to it.
    assert report.failures[0] in Past(path).results.values()
    assert Past(path).died is None


def test_only_the_same_run_is_resumed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run(load_here(asked(), "cpu"), path)
    with pytest.raises(ResumeError, match="selection differs"):
        run(load_here(asked(budget=2), "cpu"), path, resume=True)
    with pytest.raises(ResumeError, match="there is no run to resume"):
        run(load_here(asked(), "cpu"), tmp_path / "absent.jsonl", resume=True)


def test_a_narrowed_run_reaches_no_level() -> None:
    report = run(load_here(asked(only="linear_attn*"), "cpu"))
    assert report.ok
    assert {standing.level for standing in report.standings} == {""}


def test_expectations_are_applied_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "expect.toml"
    file.write_text(
        """
        [[expect]]
        select = { op = "linear_attn", variant = "chunk", level = "L1" }
        outcome = "fail.numeric"
        kind = "bug"
        reason = "it is believed to be wrong"
        expires = 2000-01-01

        [[expect]]
        select = { implementation = "reference:linear_attn#chunk", K = 12345 }
        outcome = "crash"
        kind = "bug"
        reason = "there is no such case"
        expires = 2999-01-01
        """
    )
    report = run(load_here(asked(expect=file), "cpu"))
    assert report.counts == {"pass": 1, "xpass": 3}
    assert [text.partition(") ")[2] for text in report.problems] == [
        "expired on 2000-01-01",
        "selects no check",
    ]
    assert not report.ok


def test_one_case_from_a_file(tmp_path: Path) -> None:
    import json

    (_, check, *_) = load_here(asked(), "cpu").tasks
    assert check.case is not None
    file = tmp_path / "case.json"
    file.write_text(json.dumps(check.case.to_json()))
    report = run(load_here(asked(case=file), "cpu"))
    assert [r.id for r in report.results] == [check.case.id]
    assert not report.whole


def test_promoted_cases_join_the_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    case = load_here(asked(), "cpu").tasks[1].case
    assert case is not None
    extra = case.but(seed=77)
    (tmp_path / "promoted").mkdir()
    (tmp_path / "promoted" / "x.json").write_text(json.dumps(extra.to_json()))
    monkeypatch.setattr(session, "folder_of", lambda record: tmp_path)
    assert extra.id in {task.id for task in load_here(asked(), "cpu").tasks}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"op": "rwkv"}, "no operator of reference matches 'rwkv'"),
        ({"only": "nothing"}, "no check matches 'nothing'"),
        ({"expect": Path("absent.toml")}, "there is no expectations file absent.toml"),
    ],
)
def test_requests_that_ask_for_nothing(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RunError, match=words):
        load_here(asked(**changes), "cpu")


def test_requests_that_make_no_sense() -> None:
    with pytest.raises(RunError, match="budget must be ci, full or a positive number, got 0"):
        asked(budget=0)
    with pytest.raises(ValueError, match="level must be one of"):
        asked(level="L5")
    with pytest.raises(RunError, match="there is no plugin 'acme'; installed are reference"):
        find_plugin("acme")


def test_a_plugin_of_a_package_has_a_folder() -> None:
    folder = folder_of(find_plugin("reference"))
    assert folder is not None
    assert folder.name == "reference"


def test_problems_of_the_plugin_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Result("plugin/card", "reference", "L0", Outcome.FAIL_LAW, detail="the card is wrong")
    monkeypatch.setattr(session.card, "plugin_results", lambda record, device: iter([wrong]))
    report = run(session.prepare(asked(device="cpu")))
    assert report.results == (wrong,)
    assert not report.ok


def test_checks_of_the_plugin_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = Result("plugin/card", "reference", "L0", Outcome.PASS)
    monkeypatch.setattr(session.card, "plugin_results", lambda record, device: iter([fine]))
    report = run(session.prepare(asked(device="cpu", only="plugin/card")))
    assert report.results == (fine,)
    assert not report.whole
