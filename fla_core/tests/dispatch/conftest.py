"""Dispatch among plugins that a test brings itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import pytest

from fla_core.dispatch.runtime import Runtime, sandbox
from fla_core.plugins.record import PluginRecord

Install = Callable[..., Runtime]


@pytest.fixture
def install() -> Iterator[Install]:
    """A function that makes the given plugins, and no others, the installed ones."""
    with ExitStack() as stack:

        def enter(
            *plugins: PluginRecord,
            environ: Mapping[str, str] | None = None,
            probe_timeout: float = 10.0,
        ) -> Runtime:
            box = sandbox(*plugins, environ=environ, probe_timeout=probe_timeout)
            return stack.enter_context(box)

        yield enter
