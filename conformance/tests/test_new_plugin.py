"""A generated plugin, built and installed as a third party would, climbs to L3.

The environment holds the wheels of core, suite and plugin, and what the test environment has of
other people's: nothing of this project is seen but what was installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAME = "mychip"
_OURS = ("fla_", "_editable_impl_fla_", "__editable__")
_WHEELS = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment that has the plugin.

    Attributes:
        folder: where commands run.
        source: the generated package.
        python: the environment's interpreter.
    """

    folder: Path
    source: Path
    python: Path

    def run(self, module: str, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a module as a program."""
        hidden = ("FLA_", "PYTHON")
        kept = {name: v for name, v in os.environ.items() if not name.startswith(hidden)}
        env = {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "160", **environ}
        argv = [str(self.python), "-m", module, *words]
        return subprocess.run(argv, cwd=self.folder, env=env, capture_output=True, text=True)

    def report(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Exit code and report of ``fla-conformance run``."""
        done = self.run("fla_conformance.cli", "run", NAME, *words, "--json", "report.json")
        assert done.returncode in (0, 1), done.stderr
        return done.returncode, json.loads((self.folder / "report.json").read_text())

    @contextmanager
    def fault(self, right: str, wrong: str) -> Iterator[None]:
        """Plant a fault in the installed kernels."""
        (file,) = self.python.parents[1].rglob("fla_backend_mychip/simple_gla.py")
        text = file.read_text()
        assert text.count(right) == 1
        file.write_text(text.replace(right, wrong))
        try:
            yield
        finally:
            file.write_text(text)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("third-party")
    _call("-m", "fla_core.cli", "new-plugin", NAME, "--dir", folder)
    source, wheels = folder / f"fla-backend-{NAME}", folder / "wheels"
    projects = (ROOT / "fla_core", ROOT / "conformance", source)
    _call("-m", "pip", "wheel", *_WHEELS, "--no-build-isolation", "-w", wheels, *projects)
    _call("-m", "venv", "--without-pip", folder / "environment")
    scripts = "Scripts" if os.name == "nt" else "bin"
    python = folder / "environment" / scripts / "python"
    _call("-m", "pip", "--python", python, "install", *_WHEELS, *sorted(wheels.glob("*.whl")))
    _share_others(folder / "others", python)
    return Installed(folder, source, python)


def _call(*words: object) -> None:
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _share_others(folder: Path, python: Path) -> None:
    """Let an environment see every package of this one that is not of this project."""
    folder.mkdir()
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(place).iterdir():
            if not entry.name.startswith(_OURS) and entry.suffix != ".pth":
                (folder / entry.name).symlink_to(entry)
    (packages,) = python.parents[1].rglob("site-packages")
    (packages / "others.pth").write_text(f"{folder}\n")


def test_nothing_is_read_from_the_repository(installed: Installed) -> None:
    program = (
        "import fla_core, fla_conformance as c; print(fla_core.__file__, c.__file__, sep='\\n')"
    )
    (installed.folder / "where.py").write_text(program)
    done = installed.run("where")
    assert done.returncode == 0, done.stderr
    for line in done.stdout.split():
        assert Path(line).is_relative_to(installed.folder)


def test_its_own_tests_pass(installed: Installed) -> None:
    done = installed.run("pytest", "-q", "-p", "no:cacheprovider", str(installed.source))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


def test_it_is_selected_by_the_environment(installed: Installed) -> None:
    words = ("selfcheck", "--op", "chunk_simple_gla", "--device", "cpu", "--json")
    done = installed.run("fla_core.cli", *words, FLA_BACKEND=NAME)
    assert done.returncode == 0, done.stdout + done.stderr
    dense, packed = json.loads(done.stdout)["checks"]
    assert (dense["status"], dense["ran"]) == ("pass", "mychip:simple_gla#chunk")
    assert dense["gradients"]
    assert packed["status"] == "refused"


def test_it_reaches_l3(installed: Installed) -> None:
    code, report = installed.report("--level", "L3")
    bad = [(row["id"], row["detail"]) for row in report["cases"] if row["outcome"] != "pass"]
    assert (code, bad) == (0, [])
    standings = {row["dtype"]: row["level"] for row in report["summary"]}
    assert standings == dict.fromkeys(("bfloat16", "float16", "float32"), "L3")
    for level in ("L0", "L1", "L2", "L3"):
        assert any(row["level"] == level for row in report["cases"]), level


def test_a_gradient_without_its_decay_is_found(installed: Installed) -> None:
    words = ("--level", "L2", "--budget", "2", "--only", "simple_gla@*")
    with installed.fault("until * (k @ dstate)", "k @ dstate"):
        code, report = installed.report(*words)
    failed = {row["level"] for row in report["cases"] if row["outcome"] == "fail.numeric"}
    assert code == 1
    assert failed == {"L2"}
