"""When a run under a memory checker counts: pretended checkers, programs that run for real."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import memcheck

CLEAN = "========= ERROR SUMMARY: 0 errors"
FAULTY = "========= Invalid __global__ write of size 4 bytes\n========= ERROR SUMMARY: 1 error"


def checker(folder: Path, says: str, status: int) -> str:
    """A checker that takes the options of the real one, runs the program and says something."""
    file = folder / memcheck.NAME
    script = f'shift {len(memcheck.OPTIONS)}\n"$@" || exit $?\n'
    file.write_text(f"#!/bin/sh\n{script}echo '{says}'\nexit {status}\n")
    file.chmod(0o755)
    return str(file)


def run(checker: str, program: str = "print('ran')") -> tuple[int, str]:
    line = memcheck.watched(checker, [sys.executable, "-c", program])
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_a_watched_run_without_faults_counts(tmp_path: Path) -> None:
    answer = run(checker(tmp_path, CLEAN, 0))
    assert "ran" in answer[1]
    assert memcheck.fault(*answer) == ""
    assert "did not see a planted fault" in memcheck.control_fault(*answer)


def test_a_fault_is_told_and_is_what_the_control_must_give(tmp_path: Path) -> None:
    answer = run(checker(tmp_path, FAULTY, memcheck.CAUGHT))
    assert memcheck.fault(*answer) == "1 faulty accesses, ended with 9"
    assert memcheck.control_fault(*answer) == ""


@pytest.mark.parametrize("status", [0, 1])
def test_a_run_that_nobody_watched_does_not_count(tmp_path: Path, status: int) -> None:
    answer = run(checker(tmp_path, "Device not supported", status))
    assert "watched nothing" in memcheck.fault(*answer)
    assert memcheck.control_fault(*answer)


def test_a_program_that_fails_by_itself_does_not_count(tmp_path: Path) -> None:
    answer = run(checker(tmp_path, CLEAN, 0), f"print('{CLEAN}'); raise SystemExit(1)")
    assert memcheck.fault(*answer) == "0 faulty accesses, ended with 1"


@pytest.mark.parametrize("folder", ["bin", "cu13/bin", "cuda_sanitizer_api/bin"])
def test_the_checker_is_found_in_toolkits_and_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    place = tmp_path / "there"
    (place / folder).mkdir(parents=True)
    assert memcheck.sanitizer([place]) is None
    file = checker(place / folder, CLEAN, 0)
    assert memcheck.sanitizer([place]) == file
    Path(file).chmod(0o644)
    assert memcheck.sanitizer([place]) is None
