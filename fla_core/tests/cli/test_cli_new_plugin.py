"""``fla-kernels new-plugin``: what is written, and what is refused with nothing written."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from command_line import Invoke

from fla_core.cli.new_plugin import FILES, LONGEST_NAME
from fla_core.plugins.validate import name_problem


def written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_every_file_is_written_and_told(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("new-plugin", "my_chip", "--dir", str(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["name"], told["package"]) == ("my_chip", "fla_backend_my_chip")
    assert told["distribution"] == "fla-backend-my-chip"
    folder = Path(told["folder"])
    assert folder == tmp_path / "fla-backend-my-chip"
    assert written(folder) == {file["path"] for file in told["files"]}
    assert len(told["files"]) == len(FILES)
    assert "src/fla_backend_my_chip/plugin.py" in written(folder)


def test_people_are_told_the_files_and_what_to_do_next(invoke: Invoke, tmp_path: Path) -> None:
    output = invoke("new-plugin", "mychip", "--dir", str(tmp_path / "new")).output
    assert "src/fla_backend_mychip/simple_gla.py" in output
    assert "fla-conformance run mychip --level L3" in output


@pytest.mark.parametrize("name", ["a", "x" * LONGEST_NAME])
def test_what_is_written_is_clean(name: str, invoke: Invoke, tmp_path: Path) -> None:
    assert name_problem(name) == ""
    assert invoke("new-plugin", name, "--dir", str(tmp_path)).exit_code == 0
    (folder,) = tmp_path.iterdir()
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "$" not in text
        assert ast.get_docstring(ast.parse(text)), f"{path} does not say what it is"
    ruff = shutil.which("ruff")
    if ruff is None:
        pytest.skip("ruff is not installed")
    for words in (["check", "--no-cache"], ["format", "--no-cache", "--check"]):
        done = subprocess.run([ruff, *words, folder], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("my-chip", "next      fla-kernels new-plugin my_chip"),
        ("MyChip", "next      fla-kernels new-plugin mychip"),
        ("my chip!", "next      fla-kernels new-plugin my_chip"),
        ("9lives", "next      fla-kernels new-plugin lives"),
        ("chip_", "single '_'"),
        ("my__chip", "single '_'"),
        ("../chip", "next      fla-kernels new-plugin chip"),
        ("ча", "lower-case letters"),
        ("", "'' cannot be the name of a new plugin"),
        ("x" * (LONGEST_NAME + 1), f"at most {LONGEST_NAME} letters, got {LONGEST_NAME + 1}"),
        ("auto", "policies use these"),
        ("reference", "policies use these"),
        ("cuda", "fla-kernels has these backends"),
        ("ascend", "fla-kernels has these backends"),
    ],
)
def test_a_name_that_cannot_be_is_refused(
    name: str, text: str, invoke: Invoke, tmp_path: Path
) -> None:
    result = invoke("new-plugin", name, "--dir", str(tmp_path / "new"))
    assert result.exit_code == 2
    assert repr(name) in result.stderr
    assert text in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_nothing_is_overwritten(kind: str, invoke: Invoke, tmp_path: Path) -> None:
    taken = tmp_path / "fla-backend-mychip"
    if kind == "folder":
        taken.mkdir()
    elif kind == "file":
        taken.write_text("mine")
    else:
        taken.symlink_to(tmp_path / "nowhere")
    result = invoke("new-plugin", "mychip", "--dir", str(tmp_path))
    assert result.exit_code == 2
    assert f"{taken} exists already" in result.stderr
    assert [path.name for path in tmp_path.rglob("*")] == [taken.name]
    assert kind != "file" or taken.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_named(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    result = invoke("new-plugin", "mychip", "--dir", str(tmp_path / "file" / "below"))
    assert result.exit_code == 2
    assert "cannot be made: Not a directory" in result.stderr
    result = invoke("new-plugin", "mychip", "--dir", str(tmp_path / "file"), "--json")
    assert result.exit_code == 2
    assert f"{tmp_path / 'file'} exists already" in json.loads(result.stdout)["error"]["message"]
