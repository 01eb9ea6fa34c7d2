"""Runs the command, in this process and in processes of its own with planted plugins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Invoke, Site
from typer.testing import CliRunner, Result

from fla_core.dispatch.runtime import sandbox
from fla_core.plugins.record import PluginRecord


@pytest.fixture
def plugins() -> list[PluginRecord]:
    """Plugins that are installed beside the reference; tests override it."""
    return []


@pytest.fixture
def invoke(plugins: list[PluginRecord], monkeypatch: pytest.MonkeyPatch) -> Iterator[Invoke]:
    """Run a command line in this process, with ``plugins`` and an environment without ours."""
    from fla_core.cli import app

    for name in [name for name in os.environ if name.startswith("FLA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments))

    with sandbox(*plugins, environ=os.environ):
        yield run


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """An empty one."""
    return Site(tmp_path)
