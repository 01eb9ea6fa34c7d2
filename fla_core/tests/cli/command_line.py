"""A command line in a process of its own, and distributions planted on its path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any

from typer.testing import Result

import fla_core

Invoke = Callable[..., Result]
"""Takes the words of a command line."""

SOURCES = str(Path(fla_core.__file__).parents[1])


STUB = """
class version: cuda = hip = xpu = None
class accelerator:
    @staticmethod
    def current_accelerator(check_available=False): return None
__version__ = "9.9"
"""


@dataclass(frozen=True)
class Finished:
    """A command that ran in its own process."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its stdout, all of which must be one JSON document."""
        return json.loads(self.out)


_kept_folders: list[tempfile.TemporaryDirectory[str]] = []


# Runs at the start of every Python that has the folder on its path, children of children too.
_CUSTOMIZE = """
import os, sys
given = os.environ["PYTHONPATH"].split(os.pathsep)
sys.path[:] = [p for p in sys.path if p in given or p.startswith({base!r}) and {purelib!r} not in p]
"""


@cache
def packages_without_plugins() -> str:
    """A folder that shows all installed packages but the backends this environment has."""
    folder = tempfile.TemporaryDirectory()
    _kept_folders.append(folder)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("fla_", "_editable_impl_fla_")) and entry.suffix != ".pth":
            (Path(folder.name) / entry.name).symlink_to(entry)
    customize = _CUSTOMIZE.format(base=sys.base_prefix, purelib="site-packages")
    (Path(folder.name) / "sitecustomize.py").write_text(customize)
    return folder.name


def leftover(folder: Path, package: str) -> Path:
    """The metadata of a distribution that lost its ``METADATA`` and still names a package."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "top_level.txt").write_text(f"{package}\n")
    return info


class Site:
    """A folder on PYTHONPATH with planted distributions; ``behind`` are folders further down."""

    def __init__(self, folder: Path, *behind: Path) -> None:
        self.folder, self.folders = folder, (folder, *behind)

    def plant(self, name: str, code: str, version: str = "1.0", module: str = "") -> None:
        """Install a distribution with one module and one entry point of the same name."""
        module = module or f"planted_{name}"
        (self.folder / f"{module}.py").write_text(dedent(code))
        info = self.folder / f"fla_planted_{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: fla-planted-{name}\nVersion: {version}\n"
        )
        (info / "entry_points.txt").write_text(f"[fla_core.backends]\n{name} = {module}\n")

    def stub_torch(self, code: str = STUB) -> None:
        """Shadow torch with a module that loads at once, for tests that compute nothing."""
        (self.folder / "torch.py").write_text(dedent(code))

    def run(self, *arguments: str, **environ: str) -> Finished:
        """Run ``fla-kernels`` with this folder on the path."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FLA_")}
        path = os.pathsep.join([*map(str, self.folders), SOURCES, packages_without_plugins()])
        env = {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **environ}
        command = [sys.executable, "-m", "fla_core.cli", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
        return Finished(done.returncode, done.stdout, done.stderr)


CARD = """
from fla_core.plugins import Backend, Implementation, Probe, Validity, hookimpl

@hookimpl
def fla_backend():
    return Backend(name="{name}", targets={targets!r}, toolchain="torch", requires={requires!r})
"""


def card(name: str, requires: tuple[str, ...] = (), targets: tuple[str, ...] = ("cpu",)) -> str:
    """Source of a plugin with nothing but its card."""
    return CARD.format(name=name, requires=requires, targets=targets)


KERNELS = """
from fla_core.contracts import CONTRACTS
from fla_core.domain import Domain

@hookimpl
def fla_implementations():
    yield Implementation(
        contract="kda", revision=CONTRACTS["kda"].revision, variant="chunk",
        forward="nowhere:forward", backward=None, domain=Domain(), arch={arch!r},
    )
"""


def kernels(*arch: str) -> str:
    """Source of an implementation of ``kda`` that declares itself and cannot be called."""
    return KERNELS.format(arch=arch)
