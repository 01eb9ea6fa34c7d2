"""Versions of installed distributions and who provides an import package, by metadata alone.

``importlib_metadata.packages_distributions`` raises as soon as one folder of the path has lost its
``METADATA``, as an uninstallation that was cut short leaves it. Here such a folder provides
nothing, and :func:`unreadable` names it.
"""

from __future__ import annotations

import csv
import re
import sys
from functools import cache
from inspect import getmodulename
from pathlib import Path
from typing import Any

import importlib_metadata
from importlib_metadata import Distribution


def version_of(distribution: str) -> str:
    """Version of an installed distribution; ``""`` when it is not installed, or unreadable."""
    try:
        return importlib_metadata.version(distribution) or ""
    except Exception:  # what is raised for no METADATA differs between releases
        return ""


def owners(package: str) -> tuple[str, ...]:
    """Names of the distributions that provide a top-level import package."""
    found, _ = _looked_at(tuple(sys.path))
    return tuple(found.get(package, ()))


def unreadable() -> dict[str, str]:
    """Folders of metadata that cannot be read, each with the reason."""
    _, broken = _looked_at(tuple(sys.path))
    return dict(broken)


# Reading every RECORD takes a while; only a path that changes is read again.
@cache
def _looked_at(path: tuple[str, ...]) -> tuple[dict[str, dict[str, None]], dict[str, str]]:
    found: dict[str, dict[str, None]] = {}
    broken: dict[str, str] = {}
    for distribution in importlib_metadata.distributions(path=list(path)):
        try:
            name = _name(distribution)
            for package in _packages(distribution):
                found.setdefault(package, {})[name] = None
        except Exception as error:  # metadata written by hand fails in any way there is
            place = str(getattr(distribution, "_path", distribution.locate_file("")))
            broken[place] = str(error) or type(error).__name__
    return found, broken


def _name(distribution: Distribution) -> str:
    head = (distribution.read_text("METADATA") or "").partition("\n\n")[0]
    if found := re.search(r"^Name: *(\S+)", head, re.MULTILINE):
        return found[1]  # ``metadata`` parses the description, too
    # Releases before 9 of importlib_metadata answer None, or nothing at all, for no METADATA.
    metadata: Any = distribution.metadata
    if not metadata or not metadata["Name"]:
        raise LookupError("there is no METADATA in it, or none with a name")
    return str(metadata["Name"])


def _packages(distribution: Distribution) -> set[str]:
    if declared := (distribution.read_text("top_level.txt") or "").split():
        return set(declared)
    tops = {first if deep else getmodulename(first) for first, deep in _tops(distribution)}
    return {top for top in tops if top and "." not in top}


def _tops(distribution: Distribution) -> set[tuple[str, bool]]:
    """First part of each path that a distribution installed, and whether others follow."""
    record = distribution.read_text("RECORD")
    if record is None:  # of an editable install of old, say
        return {(file.parts[0], len(file.parts) > 1) for file in distribution.files or ()}
    # ``files`` asks the disk about each of thousands, which takes some disks a second.
    paths = (row[0].removeprefix("./") for row in csv.reader(record.splitlines()) if row)
    listed = {path.partition("/")[:2] for path in paths}
    return {
        (first, bool(slash))
        for first, slash in listed
        if first and Path(str(distribution.locate_file(first))).exists()
    }
