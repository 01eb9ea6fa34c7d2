"""What the distribution promises before any operator is looked at."""

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

import fla_core


def test_is_the_installed_package_not_its_folder() -> None:
    assert fla_core.__file__ is not None
    assert Path(fla_core.__file__).parent.name == "fla_core"


def test_provides_its_command() -> None:
    (command,) = distribution("fla-kernels-core").entry_points.select(group="console_scripts")
    assert (command.name, command.value) == ("fla-kernels", "fla_core.cli:main")
    assert callable(command.load())


@pytest.mark.parametrize("heavy", ["torch", "triton"])
def test_import_loads_no_toolchain(heavy: str) -> None:
    program = f"import sys, fla_core; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
