"""Build every hostile plugin into a wheel of its own and install all of them into one folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

HERE = Path(__file__).parent
ENTRY_NAMES = {"twin_one": "twin", "twin_two": "twin", "impostor": "reference"}
"""Entry-point names that are not the file's name."""

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{distribution}"
version = "1.0"
"""
PLUGIN = """
[project.entry-points."fla_core.backends"]
{name} = "{module}"
"""
FILES = """
[tool.hatch.build.targets.wheel]
only-include = ["{module}.py"]
"""


def names() -> list[str]:
    """Every plugin, by the name of its file."""
    return sorted(path.stem for path in (HERE / "plugins").glob("*.py"))


def install_all(folder: Path) -> Path:
    """Build and install; returns the folder to put on the path."""
    wheels = [_build(folder, HERE / "hostile_base.py", "hostile_base", "")]
    for name in names():
        module = f"hostile_{name}"
        entry = PLUGIN.format(name=ENTRY_NAMES.get(name, name), module=module)
        wheels.append(_build(folder, HERE / "plugins" / f"{name}.py", module, entry))
    site = folder / "site"
    offline = ("--no-deps", "--no-index", "--no-compile", "--quiet", "--disable-pip-version-check")
    command = (sys.executable, "-m", "pip", "install", *offline, "--target", str(site), *wheels)
    subprocess.run(command, check=True)
    return site


def _build(folder: Path, source: Path, module: str, entry: str) -> str:
    project = folder / "projects" / module
    project.mkdir(parents=True)
    (project / f"{module}.py").write_text(source.read_text())
    header = PROJECT.format(distribution=module.replace("_", "-"))
    (project / "pyproject.toml").write_text(header + entry + FILES.format(module=module))
    (wheel,) = WheelBuilder(str(project)).build(directory=str(folder / "wheels"))
    return str(wheel)
