"""The proof in the interpreter passes what is right, writes it down, and fails what is spoiled."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

import programs

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


def proof(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Prove one contract on two chips, in a process of its own."""
    return programs.run("interpreter.proof", *arguments, "--only", "linear_attn")


def test_what_is_right_is_written_down(tmp_path: Path) -> None:
    run = proof("gfx1100", "gfx1201", "pvc", "--report", str(tmp_path))
    assert run.returncode == 0, run.stdout + run.stderr
    for backend, arch in (("rocm", "gfx1100"), ("rocm", "gfx1201"), ("xpu", "pvc")):
        written = json.loads((tmp_path / f"interpreted-{arch}.json").read_text())
        found = written["kind"], written["backend"], written["arch"]
        assert found == ("interpreted", backend, arch)
        (one,) = written["implementations"]
        assert (one["directions"], one["faults"]) == (["bwd", "fwd"], [])
        assert 0 < one["worst_margin"] < 1
        # Intel's chunks have one block, AMD's two: only the short case is launched alike.
        expected = {"gfx1100": 0, "gfx1201": one["cases"], "pvc": 1}[arch]
        assert one["launched_as_elsewhere"] == expected


def test_spoiled_kernels_fail() -> None:
    run = proof("gfx942", "--control")
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.endswith("spoiled kernels fail\n")
    assert "OutOfBoundsError" in run.stdout
