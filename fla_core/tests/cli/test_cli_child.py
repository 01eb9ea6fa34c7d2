"""The child that inspects plugins, when it does not answer."""

from __future__ import annotations

import sys

import pytest
from command_line import Site

from fla_core.cli._child import inspect_plugins


def test_a_plugin_that_hangs_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.plant("hangs", "import time; time.sleep(600)")
    monkeypatch.syspath_prepend(str(site.folder))
    # No torch: importing it could itself take longer than this test wants to wait.
    (site.folder / "torch.py").write_text("raise ImportError('none')")
    monkeypatch.delitem(sys.modules, "planted_hangs", raising=False)
    found = inspect_plugins(silence=4.0)
    assert list(found.crashes.values()) == ["no answer within 4 s during load"]
    assert found.torch == {"error": "ImportError: none"}
    assert found.failure == ""
