"""The pages on plugins and conformance: their commands are run, in order, as they stand there."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from fla_conformance.expect import Surroundings, load
from fla_conformance.laws import LAWS
from fla_conformance.levels import MEANING
from fla_conformance.result import Outcome
from pages import DOCS, blocks

TUTORIAL = DOCS / "plugins" / "tutorial.md"
NEW_HARDWARE = DOCS / "plugins" / "new-hardware.md"
CONFORMANCE = DOCS / "conformance.md"
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_ASSIGNMENT = re.compile(r"(\w+)=(\S*)")
_PLACES = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


class Shell:
    """A folder and an environment of its own, where the commands of a page are run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.code, self.errors = folder, 0, ""
        venv = [sys.executable, "-m", "venv", "--without-pip", folder / "environment"]
        subprocess.run(venv, check=True)
        scripts = "Scripts" if os.name == "nt" else "bin"
        self.python = folder / "environment" / scripts / "python"
        (packages,) = (folder / "environment").rglob("site-packages")
        # Packages that are installed editable here are to be seen there too.
        lines = [f"import site; site.addsitedir({place!r})" for place in _PLACES]
        (packages / "others.pth").write_text("\n".join(lines), encoding="utf-8")

    def run(self, line: str) -> str:
        """Run one command line and return what it prints on stdout."""
        if line == "echo $?":
            code, self.code = self.code, 0
            return f"{code}\n"
        assert self.code == 0, f"the command before {line!r} ended with {self.code}"
        words = shlex.split(line)
        given = {}
        while found := _ASSIGNMENT.fullmatch(words[0]):
            given[found[1]] = found[2]
            words.pop(0)
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("FLA_", "PYTHON"))}
        environ = {**kept, "COLUMNS": "160", "OMP_NUM_THREADS": "1", **given}
        done = subprocess.run(
            self._argv(*words), cwd=self.folder, env=environ, capture_output=True, text=True
        )
        assert done.returncode in (0, 1), f"{line}\n{done.stdout}{done.stderr}"
        self.code, self.errors = done.returncode, done.stderr
        return done.stdout

    def _argv(self, program: str, *words: str) -> list[str]:
        modules = {
            "fla-kernels": "fla_core.cli",
            "fla-conformance": "fla_conformance.cli",
            "pytest": "pytest",
        }
        if program in modules:
            return [str(self.python), "-m", modules[program], *words]
        if program == "pip":
            # Nothing comes from an index: what the extras name is here already.
            offline = ["--no-deps", "--no-index", "--no-build-isolation", "--quiet"]
            pip = [sys.executable, "-m", "pip", "--python", str(self.python)]
            return [*pip, words[0], *offline, *words[1:]]
        assert program in ("sed", "mv"), f"cannot run {program}"
        return [program, *words]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def commands(page: Path) -> Iterator[tuple[str, str]]:
    """The command lines of a page, each with what it should print."""
    for block in blocks(page):
        if block.language == "console":
            for part in filter(None, re.split(r"^\$ ", block.body, flags=re.MULTILINE)):
                line, _, wanted = part.partition("\n")
                yield line, wanted


def follow(page: Path, shell: Shell) -> None:
    for line, wanted in commands(page):
        printed = shell.run(line)
        same = doctest.OutputChecker().check_output(wanted, printed, _FLAGS)
        assert same, f"{line} printed:\n{printed}{shell.errors}"
    assert shell.code == 0


def make_plugin(shell: Shell) -> Path:
    """The plugin of the tutorial; returns its module."""
    for line, _ in list(commands(TUTORIAL))[:2]:
        shell.run(line)
    return shell.folder / "fla-backend-mychip" / "src" / "fla_backend_mychip" / "plugin.py"


@pytest.mark.timeout(900)  # minutes of work, and longer where others use the processors
def test_the_tutorial(shell: Shell) -> None:
    lines = [line for line, _ in commands(TUTORIAL)]
    assert "fla-conformance run mychip --level L3 --html report.html" in lines
    follow(TUTORIAL, shell)
    assert (shell.folder / "report.html").exists()


@pytest.mark.timeout(900)
def test_new_hardware(shell: Shell) -> None:
    make_plugin(shell)
    follow(NEW_HARDWARE, shell)


def test_the_hooks_of_new_hardware(shell: Shell) -> None:
    plugin = make_plugin(shell)
    row, adapter = (b.body for b in blocks(NEW_HARDWARE) if b.language == "python")
    validity = "\n\n@hookimpl\ndef fla_validity():\n    return [MISCOMPILED]\n"
    adapter = adapter.replace("def sync(self) -> None:", "def sync(self) -> None:  # asked", 1)
    adapter = adapter.replace('reported."""', 'reported."""\n            print("waited")', 1)
    plugin.write_text(plugin.read_text() + "\n\n" + row + validity + "\n\n" + adapter)
    printed = shell.run("fla-conformance run mychip --level L1 --budget 1")
    assert "waited" in printed
    doctor = shell.run("fla-kernels doctor")
    assert "the loop over chunks is reordered" in doctor


def test_conformance(shell: Shell) -> None:
    follow(CONFORMANCE, shell)


def test_a_wrong_page_is_noticed(shell: Shell, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ fla-kernels new-plugin mychip\nnothing\n```\n")
    with pytest.raises(AssertionError, match="Wrote the backend mychip"):
        follow(page, shell)
    page.write_text(
        "```console\n$ fla-kernels explain kda --backend mychp --device cpu\n...\n```\n"
    )
    with pytest.raises(AssertionError):
        follow(page, shell)


def test_the_example_of_an_expectation_is_valid(tmp_path: Path) -> None:
    (example,) = (b.body for b in blocks(CONFORMANCE) if b.language == "toml")
    file = tmp_path / "conformance-expect.toml"
    file.write_text(example)
    here = Surroundings("gfx942", "cuda:0", {"triton": "3.4.0"})
    (entry,) = load(file, here).entries
    assert entry.outcome is Outcome.FAIL_NUMERIC
    assert entry.applies(here)
    assert not entry.applies(Surroundings("gfx942", "cuda:0", {"triton": "3.5.0"}))


def test_every_level_law_and_outcome_is_explained() -> None:
    text = CONFORMANCE.read_text(encoding="utf-8")
    for level, meaning in MEANING.items():
        assert f"| {level} | {meaning} |" in text
    for name in [*LAWS, *(outcome.value for outcome in Outcome)]:
        assert f"`{name}`" in text
