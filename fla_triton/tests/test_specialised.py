"""Random lengths compile nothing that calls of the same kind have not compiled."""

from __future__ import annotations

import importlib.util
import re
import subprocess

import pytest

import programs

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


def specialised(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the driver in a process of its own: kernels remember the compiler they met first."""
    return programs.run("specialised", "sm90", *arguments)


@pytest.mark.parametrize(
    "own", [(), *(("--kernels", f"fla_backend_cuda.hopper.{x}") for x in ("delta", "decay"))]
)
def test_no_length_compiles_a_kernel_of_its_own(own: tuple[str, ...]) -> None:
    run = specialised(*own)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "kernels, 0 of them late" in run.stdout


def test_numbers_that_are_looked_at_are_found() -> None:
    run = specialised("--control", "--only", "linear_attn")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "linear_attn" in run.stdout
    assert re.search(r"\w+ at \d+ tokens, \d packed", run.stdout)
