"""The command ``fla-conformance``."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fla_conformance.case import Case
from fla_conformance.cli import app
from fla_conformance.cli.outputs import Outputs
from fla_conformance.report import Report
from fla_conformance.result import Outcome
from fla_conformance.stream import Stream
from rows import case, margin, plugin_row, report, row

ONE = "reference:linear_attn#chunk"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, words, env={"COLUMNS": "200"}, catch_exceptions=False)


def test_the_version_is_that_of_the_package() -> None:
    done = invoke("--version")
    assert (done.exit_code, done.output) == (0, f"fla-conformance {version('fla-conformance')}\n")
    assert "Prove a linear attention backend" in invoke("--help").output


BAD = row("L2", Outcome.FAIL_NUMERIC, of=case(seed=3), margin=margin(3.0))


@pytest.fixture
def bad_report(tmp_path: Path) -> Path:
    path = tmp_path / "bad.json"
    report(plugin_row(), row("L1", margin=margin(0.5)), BAD).write(path)
    return path


def test_run_writes_every_form_of_report() -> None:
    files = ("--json", "out/r.json", "--html", "r.html", "--junit", "r.xml", "--markdown", "r.md")
    done = invoke("run", "reference", "--op", ONE, "--level", "l1", "--budget", "2", *files)
    assert done.exit_code == 0, done.output
    assert "7 pass" in done.output
    found = Report.read(Path("out/r.json"))
    assert found.ok
    assert {s.level for s in found.standings} == {"L1"}
    assert found.header["argv"][0] == "fla-conformance"
    for name in ("r.html", "r.xml", "r.md"):
        assert ONE in Path(name).read_text()
    assert Path(".fla-conformance/.gitignore").read_text() == "*\n"
    assert Path(".fla-conformance/reference-cpu.jsonl").exists()


def test_run_beside_a_leftover_without_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "triton-1.0.dist-info"
    info.mkdir()
    (info / "top_level.txt").write_text("triton\n")
    monkeypatch.syspath_prepend(tmp_path)
    words = ("--op", ONE, "--level", "L0", "--budget", "1", "--json", "r.json")
    assert invoke("run", "reference", *words).exit_code == 0
    assert "triton" not in Report.read(Path("r.json")).header["dists"]


def test_run_of_what_failed_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = ("--expect", "e.toml")
    Path("e.toml").write_text(
        '[[expect]]\nselect = { implementation = "reference:linear_attn#chunk", level = "L1" }\n'
        'outcome = "crash"\nkind = "bug"\nreason = "x"\nexpires = 2999-01-01\n'
    )
    only = ("--only", "linear_attn*", "--budget", "1", "--level", "L1")
    done = invoke("run", "reference", "--op", ONE, *only, *wrong)
    assert done.exit_code == 1
    assert "xpass" in done.output
    assert "--only linear_attn@" in done.output
    saved = list(Path(".fla-conformance/cases").glob("*.json"))
    assert len(saved) == 1
    again = invoke("run", "reference", "--op", ONE, "--case", str(saved[0]))
    assert again.exit_code == 0, again.output
    assert "narrowed or cut short" in again.output


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("run", "nobody"), "there is no plugin 'nobody'; installed are reference"),
        (("run", "reference", "--level", "L7"), "must be one of L0, L1, L2, L3, L4, got 'L7'"),
        (("run", "reference", "--budget", "0"), "a number of cases, 1 or more, got '0'"),
        (("run", "reference", "--op", ONE, "--device", "tpu"), "--device tpu: torch has none here"),
        (("run", "reference", "--op", ONE, "--device", "cuda:99"), "--device cuda:99: torch has"),
        (("run", "reference", "--case", "absent.json"), "absent.json holds no case"),
        (("run", "reference", "--op", ONE, "--html", "."), ". cannot be written: Is a directory"),
        (
            ("ladder", "reference", "--op", ONE, "--json", "."),
            ". cannot be written: Is a directory",
        ),
        (("report", "absent.json"), "absent.json is not a fla-conformance-report/1"),
        (("badge", "absent.json"), "fla-conformance-report/1: there is no such file"),
        (("badge", "absent.jsonl"), "fla-conformance-report/1: there is no such file"),
        (("draft", "absent.jsonl"), "fla-conformance-report/1: there is no such file"),
        (("promote", "x.json"), "either --plugin NAME or --to FOLDER"),
    ],
)
def test_questions_that_cannot_be_understood(words: tuple[str, ...], problem: str) -> None:
    done = invoke(*words)
    assert done.exit_code == 2
    assert problem in " ".join(done.output.replace("│", " ").split())
    assert "Traceback" not in done.output


def test_a_run_that_is_stopped_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fla_conformance.session.run", stopped)
    done = invoke("run", "reference", "--op", ONE, "--level", "L1", "--budget", "1")
    assert done.exit_code == 130
    assert "what has ended is in .fla-conformance/reference-cpu.jsonl" in done.output
    assert "--resume" in done.output


def test_report_prints_and_renders(bad_report: Path) -> None:
    done = invoke("report", str(bad_report))
    assert done.exit_code == 1
    assert BAD.id in done.output
    assert "2 pass, 1 fail.numeric" in done.output
    invoke("report", str(bad_report), "--html", "x.html", "--cases", "cases")
    assert BAD.id in Path("x.html").read_text()
    (saved,) = Path("cases").glob("*.json")
    assert Case.from_json(json.loads(saved.read_text())) == case(seed=3)


def test_report_of_a_run_cut_short(bad_report: Path) -> None:
    stream = Stream.new(Path("run.jsonl"), {**report().header, "complete": False})
    stream.end(row("L1"))
    stream.begin(("acme:gla#chunk", "L1", "gla"))
    done = invoke("report", "run.jsonl")
    assert done.exit_code == 1
    assert "narrowed or cut short" in done.output


def test_badge_is_computed_from_the_report(bad_report: Path) -> None:
    done = invoke("badge", str(bad_report), "--out", "badges")
    assert done.exit_code == 0
    assert done.output.startswith("gla@")
    assert done.output.strip().endswith("· L1 bf16 · n1")
    assert done.output.strip() in Path("badges/acme-gla.svg").read_text()
    assert invoke("badge", str(bad_report), "--op", "kda").exit_code == 2


def test_draft_leaves_the_reason_open(bad_report: Path) -> None:
    text = invoke("draft", str(bad_report)).output
    assert BAD.id in text
    assert 'reason  = ""' in text


def test_promote_copies_a_case_into_the_folder() -> None:
    found = case(seed=5)
    Path("found.json").write_text(json.dumps(found.to_json()))
    done = invoke("promote", "found.json", "--to", "here")
    assert done.exit_code == 0
    assert found.id in done.output
    (path,) = Path("here/promoted").glob("gla-fwd-*.json")
    assert Case.from_json(json.loads(path.read_text())) == found


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"contract": "rwkv"}, "contract must be one of linear_attn"),
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"regime": "wild"}, "regime must be one of plain"),
        ({"features": ["magic"]}, "gla has no feature 'magic'"),
        ({"colour": 1}, "unexpected keyword argument 'colour'"),
        ({"sizes": []}, "sizes must be those of B, T, H, HV, K, V"),
        ({"sizes": {"B": 1}}, "sizes must be those of B, T, H, HV, K, V"),
        ({"lengths": [1, -1], "features": ["varlen"]}, "numbers from 0 on"),
        ({"lengths": [1]}, "with lengths B must be 1 and T their sum"),
        ({"gradients": ["z"]}, "gla has no argument 'z'"),
    ],
)
def test_promote_refuses_what_is_no_case(changes: dict[str, object], problem: str) -> None:
    Path("found.json").write_text(json.dumps({**case().to_json(), **changes}))
    done = invoke("promote", "found.json", "--to", "here")
    assert done.exit_code == 2
    assert problem in done.output
    assert not Path("here").exists()


def test_a_file_of_something_else_is_no_case() -> None:
    Path("found.json").write_text("[]")
    done = invoke("promote", "found.json", "--to", "here")
    assert done.exit_code == 2
    assert "found.json holds no case: AttributeError" in done.output


def test_looking_whether_files_can_be_written_leaves_them_as_they_are() -> None:
    Path("old.html").write_text("old")
    Outputs(json=Path("deep/new.json"), html=Path("old.html")).check()
    assert Path("old.html").read_text() == "old"
    assert list(Path("deep").iterdir()) == []


@pytest.fixture
def known_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks of the plugin as a whole pass, with no interpreter started for them."""
    passed = [plugin_row()]
    monkeypatch.setattr("fla_conformance.session.card.plugin_results", lambda *_: iter(passed))


@pytest.mark.usefixtures("known_card")
def test_ladder_names_the_next_step() -> None:
    done = invoke("ladder", "reference", "--op", ONE, "--level", "L1", "--budget", "1")
    assert done.exit_code == 0, done.output
    assert "■■□□□ L1" in done.output


@pytest.mark.usefixtures("known_card")
def test_ladder_says_how_to_see_the_failure_again(
    bad_report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Report.read(bad_report)
    monkeypatch.setattr("fla_conformance.session.run", lambda *_, **__: found)
    words = ("--op", ONE, "--level", "L2", "--budget", "1", "--json", "climbed.json")
    done = invoke("ladder", "reference", *words)
    assert done.exit_code == 1
    assert re.search(r"L2: (\d+) of \d+ failed, first fail\.numeric", done.output)
    assert f"--level L2 --budget ci --only {BAD.id}" in done.output
    assert "written: climbed.json" in done.output


def test_starting_it_loads_no_torch() -> None:
    import subprocess

    program = "import sys, fla_conformance.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
