"""Requirements are answered from metadata, under whatever name a build goes."""

from __future__ import annotations

import importlib_metadata
import pytest

from fla_core.plugins import requirements

PLUGGY = importlib_metadata.version("pluggy")


def test_met() -> None:
    assert requirements.unmet(("pluggy>=1", f"pluggy=={PLUGGY}")) == ""


def test_markers_that_do_not_apply_are_skipped() -> None:
    assert requirements.unmet(("nothing>=1; python_version < '3'",)) == ""


def test_what_cannot_be_read() -> None:
    assert requirements.unmet(("pluggy>>1",)).startswith("'pluggy>>1' is not a requirement")
    assert not requirements.matches("pluggy>>1", {})


def test_a_vendor_build_counts_by_what_it_provides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        requirements, "owners", lambda name: ("pluggy",) if name == "chisel" else ()
    )
    assert requirements.installed_version("chisel") == PLUGGY
    assert requirements.unmet(("chisel>=1",)) == ""
    assert requirements.unmet(("chisel>=999",)) == f"needs chisel>=999, found {PLUGGY}"


def test_versions_a_probe_reports_win() -> None:
    assert requirements.matches("pluggy<1", {"pluggy": "0.5"})
    assert not requirements.matches("pluggy<1", {})
    assert not requirements.matches("no-such-toolchain", {})
    assert requirements.matches("*", {})


def test_pre_releases_and_local_versions_count() -> None:
    assert requirements.matches("triton>=3.4", {"triton": "3.5.0+git1234"})
    assert requirements.matches("triton>=3.4", {"triton": "3.5.0.dev2"})
    assert not requirements.matches("triton>=3.4", {"triton": "unknown"})
