"""The generated pages are current, and ``--check`` notices when they are not."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

import catalogue
import generate
import pytest
import tables
from typer.testing import CliRunner

from fla_core.cli import app
from fla_core.contracts import CONTRACTS
from pages import ROOT


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The generated pages, in a repository of their own."""
    for name in (*generate.WHOLE, *generate.PARTS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_pages_are_current(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"], copy) == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", [*generate.WHOLE, *generate.PARTS])
def test_a_change_to_a_page_is_noticed(
    name: str, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = copy / name
    text = page.read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| `"))
    page.write_text(text.replace(row, row.replace("| `", "| `planted ", 1)), encoding="utf-8")
    assert generate.main(["--check"], copy) == 1
    printed = capsys.readouterr().out
    assert "planted" in printed
    assert name in printed
    assert generate.main([], copy) == 0
    assert page.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("command", [info.callback.__name__ for info in app.registered_commands])
def test_the_page_of_commands_has_what_help_has(command: str) -> None:
    command = command.replace("_", "-")
    done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    (section,) = (text for text in page.split("\n## ") if text.startswith(f"{command}\n"))
    (usage,) = re.findall(r"^`(fla-kernels .*)`$", section, re.MULTILINE)
    # Releases of typer put arguments in lower case, or in braces.
    (helped,) = re.findall(rf"^ *Usage: .*? {command} (.*?)\s*$", done.stdout, re.MULTILINE)
    assert usage.split()[2:] == re.sub("[{}]", "", helped).upper().split()
    options = re.findall(r"^\| `(--[\w-]+)`", section, re.MULTILINE)
    shown = re.findall(r"^  (--[^<\s].*?)(?: <|  |$)", done.stdout, re.MULTILINE)
    assert options == shown


def test_a_change_to_a_contract_is_noticed(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = dataclasses.replace(CONTRACTS["gla"], source="a planted paper")
    monkeypatch.setitem(CONTRACTS, "gla", changed)
    assert generate.main(["--check"], copy) == 1
    assert "+Source: a planted paper" in capsys.readouterr().out


def test_a_feature_that_nobody_described_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(catalogue.FEATURES, "l2norm")
    with pytest.raises(tables.Incomplete, match="l2norm"):
        catalogue.page()


def test_a_page_without_markers_is_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = copy / "README.md"
    page.write_text(page.read_text(encoding="utf-8").replace("<!-- end -->", ""), encoding="utf-8")
    assert generate.main(["--check"], copy) == 1
    assert "README.md needs one pair of markers" in capsys.readouterr().err


def test_an_unknown_argument_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--chekc"]) == 2
    assert "--chekc" in capsys.readouterr().err
