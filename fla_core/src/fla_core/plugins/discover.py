"""Finding plugins through installed metadata; nothing of a plugin is imported here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import importlib_metadata
from importlib_metadata import Distribution, EntryPoint

from fla_core.plugins.installed import version_of
from fla_core.plugins.record import Origin, PluginRecord
from fla_core.plugins.validate import name_problem

GROUP = "fla_core.backends"
CORE = "fla-kernels-core"
REFERENCE = "reference"
REFERENCE_TARGET = "fla_core.reference.plugin"


def discover() -> list[PluginRecord]:
    """Return a record for the built-in reference and for every entry point of the group.

    Plugins come in the order of their distributions' names, never of installation; of two with the
    same name the first is kept, the other is reported broken.
    """
    records = [reference_record()]
    kept: dict[str, PluginRecord] = {}
    for record in sorted(_found(), key=lambda r: (r.origin.distribution, r.name, r.target)):
        records.append(record)
        if problem := name_problem(record.name):
            record.breaks("discover", problem)
        elif (first := kept.setdefault(record.name, record)) is not record:
            record.breaks("discover", f"the name is taken by {first.origin} ({first.target})")
            first.notes.append(f"{record.origin} ({record.target}) wants the same name")
    return records


def reference_record() -> PluginRecord:
    """The record of the plugin that is always there."""
    origin = Origin(CORE, version_of(CORE), built_in=True)
    return PluginRecord(REFERENCE, origin, REFERENCE_TARGET)


def in_memory(name: str, module: Any, distribution: str = "in memory") -> PluginRecord:
    """The record of a plugin that is at hand as a module or object, without an entry point."""
    record = PluginRecord(name, Origin(distribution), getattr(module, "__name__", name))
    record.module = module
    if problem := name_problem(name):
        record.breaks("discover", problem)
    return record


def _found() -> Iterable[PluginRecord]:
    # Un-deduplicated on purpose: a stale copy of a distribution further down sys.path is the usual
    # reason why an upgrade seems to have no effect, and entry_points() hides it.
    copies: dict[str, list[Any]] = defaultdict(list)
    for distribution in importlib_metadata.distributions():
        try:
            if distribution.entry_points.select(group=GROUP):
                copies[_normal(distribution.metadata["Name"])].append(distribution)
        except Exception as error:
            # Of all broken metadata on a machine, only that which mentions us is our business.
            if GROUP in (distribution.read_text("entry_points.txt") or ""):
                yield _unreadable(distribution, error)
    for name, distributions in copies.items():
        active, *shadowed = distributions
        notes = [
            f"a shadowed copy, version {copy.version}, lies at {_place(copy)}" for copy in shadowed
        ]
        for entry in active.entry_points.select(group=GROUP):
            yield _record(name, active, entry, notes)


def _unreadable(distribution: Any, error: Exception) -> PluginRecord:
    place = str(getattr(distribution, "_path", "unknown"))
    record = PluginRecord("unreadable", Origin(place), "")
    record.breaks("discover", f"metadata: {type(error).__name__}: {error}", error)
    return record


def _record(
    name: str, distribution: Distribution, entry: EntryPoint, notes: list[str]
) -> PluginRecord:
    origin = Origin(name, distribution.version or "", _editable(distribution))
    return PluginRecord(
        entry.name, origin, entry.value.partition("[")[0].strip(), notes=list(notes)
    )


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _editable(distribution: Distribution) -> bool:
    try:
        direct = distribution.origin
    except Exception:  # metadata written by hand need not be valid JSON
        return False
    return bool(getattr(getattr(direct, "dir_info", None), "editable", False))


def _place(distribution: Distribution) -> str:
    return str(distribution.locate_file(""))
