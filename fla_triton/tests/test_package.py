"""What the distribution promises before any kernel is looked at."""

import subprocess
import sys
from importlib.metadata import distribution, entry_points
from pathlib import Path

import pytest

import fla_triton


def test_is_the_installed_package_not_its_folder() -> None:
    assert fla_triton.__file__ is not None
    assert Path(fla_triton.__file__).parent.name == "fla_triton"


def test_version_comes_from_the_distribution() -> None:
    assert fla_triton.__version__ == distribution("fla-kernels-triton").version


def test_registers_no_plugin() -> None:
    assert list(distribution("fla-kernels-triton").entry_points) == []
    for point in entry_points(group="fla_core.backends"):
        assert not point.value.startswith("fla_triton")


@pytest.mark.parametrize("heavy", ["torch", "triton"])
def test_import_loads_no_toolchain(heavy: str) -> None:
    program = f"import sys, fla_triton; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
