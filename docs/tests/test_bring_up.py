"""The guide for a card that is compiled for: each command is run here, where there is no card."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer

from fla_core import cli
from pages import DOCS, ROOT, blocks

GUIDE = DOCS / "plugins" / "new-hardware.md"
MODULES = {"fla-kernels": "fla_core.cli", "fla-conformance": "fla_conformance.cli"}
MODULES_OF = {program: module.partition(".")[0] for program, module in MODULES.items()}
NO_DEVICE = r"expected +a device of this machine"
ANSWERS = {
    "doctor": r"Plugin rocm +unavailable",
    "explain": r"rocm +unavailable",
    "selfcheck": NO_DEVICE,
    "tune": NO_DEVICE,
    "bench": NO_DEVICE,
    "run": r"not_executed rocm\s+plugin/card\s+needs triton",
}
"""What each command says where no plugin for the card can be used, instead of a traceback."""


def lines() -> list[str]:
    """Every command line of the guide for a shell, without what is said of it."""
    shells = [block.body for block in blocks(GUIDE) if block.language == "sh"]
    return [line.partition(" #")[0].strip() for body in shells for line in body.splitlines()]


def on_card() -> list[str]:
    return [line for line in lines() if line.split()[0] not in ("nox", "pip")]


def test_every_command_is_known() -> None:
    assert {command_of(line)[1][1] for line in on_card()} == ANSWERS.keys()


def command_of(line: str) -> tuple[dict[str, str], list[str]]:
    """Variables that a line sets, and its words."""
    words = shlex.split(line)
    given = {}
    while "=" in words[0]:
        name, _, given[name] = words.pop(0).partition("=")
    return given, words


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a GPU")
@pytest.mark.parametrize("line", on_card())
def test_commands_end_with_a_reason_without_the_card(line: str, tmp_path: Path) -> None:
    given, (program, *words) = command_of(line)
    run = subprocess.run(
        [sys.executable, "-m", MODULES[program], *words],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "160", "OMP_NUM_THREADS": "1", **given},
        capture_output=True,
        text=True,
        check=False,
    )
    said = run.stdout + run.stderr
    assert "Traceback" not in said
    assert re.search(ANSWERS[words[0]], said.replace("\\n", "\n")), said
    assert run.returncode in ((2,) if ANSWERS[words[0]] == NO_DEVICE else (0, 1))
    if "--html" in words:
        assert (tmp_path / words[words.index("--html") + 1]).exists()


def test_files_to_write_are_not_taken_for_operators() -> None:
    group = typer.main.get_command(cli.app)
    wrote = {}
    for line in on_card():
        _, (program, command, *words) = command_of(line)
        if program == "fla-kernels" and any(word.endswith(".json") for word in words):
            given = group.commands[command].make_context(command, words).params
            wrote[command] = (str(given["out"]), given["device"], given.get("operators") or [])
    assert wrote == {
        "tune": ("gfx942.json", "cuda:0", []),
        "bench": ("bench-gfx942.json", "cuda:0", []),
    }


def test_what_the_guide_installs_is_here_and_suffices() -> None:
    (line,) = (line for line in lines() if line.startswith("pip "))
    folders = re.findall(r"-e \./(\S+)", line)
    built = {f"fla_{folder}" if folder == "conformance" else folder for folder in folders}
    assert all((ROOT / folder / "pyproject.toml").exists() for folder in folders)
    assert {"fla_backend_rocm", *MODULES_OF.values()} <= built


def test_sessions_of_the_guide_exist() -> None:
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    sessions = {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list
    }
    named = [line.removeprefix("nox -s ") for line in lines() if line.startswith("nox ")]
    assert named
    for line in named:
        wanted, _, options = line.partition(" -- ")
        assert set(wanted.split()) <= sessions
        if options:
            assert options == "--report docs/proofs"
