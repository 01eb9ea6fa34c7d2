"""Plugins installed for a test: a package, its metadata, and commands that see them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import fla_conformance
import fla_core

_SOURCES = [str(Path(module.__file__ or "").parents[1]) for module in (fla_core, fla_conformance)]

PLUGIN = """
    from fla_core.domain import Domain
    from fla_core.plugins import Backend, Implementation, Probe, hookimpl

    @hookimpl
    def fla_backend():
        return Backend("{name}", ("cpu",), "torch", description="planted for a test")

    @hookimpl
    def fla_implementations():
        for contract in {contracts}:
            yield Implementation(
                contract, 1, "plain", "{package}.kernels:forward", "{package}.kernels:backward",
                Domain(dtypes=("float32",), features=dict.fromkeys({features}, "optional")),
            )

    @hookimpl
    def fla_probe(device):
        return Probe(True, arch="toy1")
"""

RIGHT = """
    from fla_core.reference.implementations import decay_chunk_backward as backward
    from fla_core.reference.implementations import decay_chunk_forward as forward
"""


@dataclass(frozen=True)
class Finished:
    """A command that ran in its own process."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Site:
    """A folder that interpreters started here search for distributions."""

    folder: Path

    def plant(
        self,
        name: str = "acme",
        kernels: str = RIGHT,
        plugin: str = PLUGIN,
        contracts: Sequence[str] = ("linear_attn",),
        features: Sequence[str] = ("initial_state", "final_state"),
        expect: str = "",
    ) -> Path:
        """Install a package with a plugin; returns its folder."""
        package = f"planted_{name}"
        folder = self.folder / package
        folder.mkdir(parents=True)
        words = {"name": name, "package": package}
        code = dedent(plugin).format(**words, contracts=tuple(contracts), features=tuple(features))
        (folder / "__init__.py").write_text("")
        (folder / "plugin.py").write_text(code)
        (folder / "kernels.py").write_text(dedent(kernels))
        if expect:
            (folder / "conformance-expect.toml").write_text(dedent(expect))
        info = self.folder / f"fla_planted_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: fla-planted-{name}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(f"[fla_core.backends]\n{name} = {package}.plugin\n")
        return folder

    def python(self, *arguments: str) -> Finished:
        """Run an interpreter that sees what was planted, in the folder above it."""
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self.folder), *_SOURCES]),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "120",
        }
        env.pop("FLA_BACKEND", None)
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            env=env,
            cwd=self.folder.parent,
            timeout=600,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def suite(self, *arguments: str) -> Finished:
        """Run the command ``fla-conformance``."""
        return self.python("-m", "fla_conformance.cli", *arguments)
