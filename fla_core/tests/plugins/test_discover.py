"""Discovery from metadata: an order of its own, duplicates, shadowed copies, reserved names."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fla_core.dispatch.settings import PluginFilter
from fla_core.plugins.discover import discover
from fla_core.plugins.record import PluginRecord, State
from fla_core.plugins.registry import Registry


def install(
    site: Path, distribution: str, entries: dict[str, str], version: str = "1.0", **files: str
) -> None:
    """Write the metadata of an installed distribution."""
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    lines = [f"{name} = {value}" for name, value in entries.items()]
    text = "\n".join(["[fla_core.backends]", *lines])
    (info / "entry_points.txt").write_text(text + "\n")
    for name, content in files.items():
        (info / name).write_text(content)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of the import path that has metadata."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    return tmp_path / "site"


def _found() -> list[PluginRecord]:
    return [record for record in discover() if not record.built_in]


def test_nothing_installed_leaves_the_reference(site: Path) -> None:
    (record,) = discover()
    assert (record.name, record.state, record.built_in) == ("reference", State.FOUND, True)


def test_order_is_by_distribution_whatever_the_order_of_installation(site: Path) -> None:
    for distribution in ("zeta", "alpha", "Middle.Name"):
        install(site, distribution, {distribution[:2].lower(): "somewhere.plugin"})
    assert [record.origin.distribution for record in _found()] == ["alpha", "middle-name", "zeta"]


def test_nothing_is_imported(site: Path) -> None:
    install(site, "acme", {"acme": "module_that_does_not_exist.plugin"})
    (record,) = _found()
    assert (record.state, record.target) == (State.FOUND, "module_that_does_not_exist.plugin")
    assert record.summary() == "found"


def test_of_two_plugins_with_one_name_the_first_is_kept_and_both_are_told(site: Path) -> None:
    install(site, "beta-kernels", {"acme": "beta.plugin"})
    install(site, "alpha-kernels", {"acme": "alpha.plugin"})
    first, second = _found()
    assert first.notes == ["beta-kernels 1.0 (beta.plugin) wants the same name"]
    assert second.summary() == (
        "broken: discover: the name is taken by alpha-kernels 1.0 (alpha.plugin)"
    )
    assert Registry([first, second]).get("acme") is first


@pytest.mark.parametrize("name", ["auto", "none", "reference"])
def test_reserved_names(site: Path, name: str) -> None:
    install(site, "acme", {name: "acme.plugin"})
    (record,) = _found()
    expected = f"the name '{name}' is reserved (auto, none, reference)"
    assert record.summary() == f"broken: discover: {expected}"
    built_in = Registry(discover()).get("reference")
    assert built_in is not None
    assert built_in.built_in


def test_names_are_lower_case(site: Path) -> None:
    install(site, "acme", {"Acme": "acme.plugin"})
    (record,) = _found()
    assert "the name 'Acme' must be lower-case letters" in record.summary()


def test_shadowed_copies_are_reported(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = tmp_path / "stale"
    monkeypatch.setattr(sys, "path", [str(site), str(stale)])
    install(site, "acme", {"acme": "acme.plugin"}, version="2.0")
    install(stale, "acme", {"acme": "acme.plugin"}, version="1.0")
    (record,) = _found()
    assert str(record.origin) == "acme 2.0"
    (note,) = record.notes
    assert note.startswith("a shadowed copy, version 1.0, lies at ")
    assert note.rstrip("/").endswith("stale")


def test_editable_installs_are_told(site: Path) -> None:
    direct = json.dumps({"url": "file:///src/acme", "dir_info": {"editable": True}})
    install(site, "acme", {"acme": "acme.plugin"}, **{"direct_url.json": direct})
    (record,) = _found()
    assert str(record.origin) == "acme 1.0 (editable)"


def test_metadata_that_is_not_valid_does_not_stop_discovery(site: Path) -> None:
    install(site, "acme", {"acme": "acme.plugin"}, **{"direct_url.json": "{"})
    (record,) = _found()
    assert not record.origin.editable


@pytest.mark.parametrize(
    ("spoilt", "text"), [("METADATA", None), ("entry_points.txt", "[fla_core.backends]\nx")]
)
def test_a_spoilt_distribution_is_reported_and_costs_only_itself(
    site: Path, spoilt: str, text: str | None
) -> None:
    install(site, "acme", {"acme": "acme.plugin"})
    install(site, "beta", {"beta": "beta.plugin"})
    file = site / "beta-1.0.dist-info" / spoilt
    file.unlink() if text is None else file.write_text(text)
    found = {record.name: record for record in _found()}
    assert found["acme"].state is State.FOUND
    assert "beta-1.0.dist-info" in found["unreadable"].origin.distribution
    assert found["unreadable"].summary().startswith("broken: discover: metadata: ")


def test_spoilt_metadata_of_others_is_not_our_business(site: Path) -> None:
    install(site, "acme", {"acme": "acme.plugin"})
    install(site, "other", {})
    (site / "other-1.0.dist-info" / "entry_points.txt").write_text("[console_scripts]\nx")
    assert [record.name for record in _found()] == ["acme"]


def test_filter_excludes_before_loading_and_spares_the_reference(site: Path) -> None:
    install(site, "acme", {"acme": "module_that_does_not_exist.plugin"})
    registry = Registry.discovered()
    registry.exclude(PluginFilter("none", allowed=frozenset()).rule_for)
    registry.load()
    acme, reference = registry.get("acme"), registry.get("reference")
    assert acme is not None
    assert reference is not None
    assert acme.summary() == 'excluded: FLA_PLUGINS="none"'
    assert reference.state is State.LOADED
    registry.exclude(PluginFilter().rule_for)
    registry.load()
    assert "No module named 'module_that_does_not_exist'" in acme.summary()
