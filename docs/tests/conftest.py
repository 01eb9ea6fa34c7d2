"""Tests of the documentation see no ``FLA_*`` variable and no installed backend."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from example_plugins import acme, bolt
from fla_core.dispatch.runtime import sandbox

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


@pytest.fixture(autouse=True)
def only_the_reference(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # COLUMNS: pytest-xdist sets it for its workers, and pages show what a pipe would get.
    for name in [name for name in os.environ if name.startswith("FLA_") or name == "COLUMNS"]:
        monkeypatch.delenv(name)
    with sandbox(environ=os.environ):
        yield


@pytest.fixture
def two_backends() -> Iterator[None]:
    """For pages that suppose two backends to be installed."""
    with sandbox(acme(), bolt(), environ=os.environ):
        yield
