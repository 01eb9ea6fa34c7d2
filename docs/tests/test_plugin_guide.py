"""The plugin of the guide is built from the page's own blocks, installed and run as it says."""

from __future__ import annotations

import doctest
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pages import DOCS, ROOT, blocks

GUIDE = DOCS / "plugins" / "writing-a-plugin.md"
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the guide's files under ``acme`` and its package under ``site``."""
    folder = tmp_path_factory.mktemp("guide")
    written = set()
    for block in blocks(GUIDE):
        if block.file:
            path = folder / ("" if block.file == "use.py" else "acme") / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body, encoding="utf-8")
            written.add(block.file)
    assert {"pyproject.toml", "src/fla_acme/plugin.py", "use.py"} <= written
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([sys.executable, *pip, "--target", folder / "site", folder / "acme"], check=True)
    return folder


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program, *arguments = shlex.split(command)
    start = {"fla-kernels": ["-m", "fla_core.cli"], "python": []}[program]
    paths = [str(folder / "site"), str(ROOT / "fla_core" / "src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "160"}
    argv = [sys.executable, *start, *arguments]
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True)


COMMANDS = [
    (line, wanted)
    for block in blocks(GUIDE)
    if block.language == "console"
    for line, _, wanted in (part.partition("\n") for part in block.body.split("$ ") if part)
]


def test_the_guide_installs_runs_and_checks_the_plugin() -> None:
    programs = [line.split()[0] for line, _ in COMMANDS]
    assert programs == ["pip", "python", "fla-kernels", "fla-kernels"]


@pytest.mark.parametrize(
    ("line", "wanted"), COMMANDS[1:], ids=[line.split(" --")[0] for line, _ in COMMANDS[1:]]
)
def test_a_command_prints_what_the_guide_says(line: str, wanted: str, installed: Path) -> None:
    result = run(line, installed)
    assert result.returncode == 0, result.stdout + result.stderr
    same = doctest.OutputChecker().check_output(wanted, result.stdout, _FLAGS)
    assert same, f"{line} printed:\n{result.stdout}"


def test_the_plugin_is_right_behind_lowerings_and_refuses_packed_calls(installed: Path) -> None:
    command = "fla-kernels selfcheck --backend acme --op chunk_retention --device cpu --json"
    dense, packed = json.loads(run(command, installed).stdout)["checks"]
    assert dense["case"] == "dense"
    assert dense["ran"] == "acme:simple_gla#loop (lowered: g_gamma)"
    assert dense["status"] == "pass"
    assert dense["gradients"]
    assert packed["case"] == "varlen"
    assert packed["status"] == "refused"
