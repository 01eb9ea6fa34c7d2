"""Fixtures: the hostile plugins installed, and a process that runs scenarios with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import hostile_wheels  # noqa: E402
from hostile_report import Report  # noqa: E402


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every hostile plugin is installed."""
    return hostile_wheels.install_all(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="session")
def environment(site: Path) -> dict[str, str]:
    """Variables under which a process finds them and nothing is loaded yet."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLA_")}
    path = os.pathsep.join(filter(None, (str(site), kept.get("PYTHONPATH", ""))))
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def runner(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The process that forks a child for each scenario."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "hostile_runner.py")],
        env={**environment, "FLA_PLUGINS": "none"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.communicate(timeout=10)


@pytest.fixture
def meet(runner: subprocess.Popen[str]) -> Callable[..., Report]:
    """Run a scenario: a call under plugins that may load, then calls to other backends."""

    def meet(
        *plugins: str,
        backend: str | None = None,
        gradients: bool = False,
        calls: int = 1,
        compiled: bool = False,
        others: tuple[str, ...] = ("reference", "honest"),
    ) -> Report:
        allowed = {*plugins, *others}
        request = {
            "plugins": ",".join(sorted(allowed)),
            "backend": backend,
            "gradients": gradients,
            "calls": calls,
            "compiled": compiled,
            "others": others,
        }
        assert runner.stdin is not None
        assert runner.stdout is not None
        runner.stdin.write(json.dumps(request) + "\n")
        runner.stdin.flush()
        report = json.loads(runner.stdout.readline())
        assert "crash" not in report, report["crash"]
        return Report(**{**report, "error": report["error"] or {}})

    return meet
