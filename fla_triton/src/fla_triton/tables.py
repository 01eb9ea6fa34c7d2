"""Tuned tiles: tables of measured configurations, one file a chip, and the nearest entry of one.

A file is ``{"schema": "fla-tiles/1", "arch": "sm90", "entries": [...]}``; an entry has the fields
of :class:`Entry`, its tiles as :func:`encode` writes them, what they took (``ms``) beside what the
defaults took (``default_ms``), and where (``measured``). ``fla-kernels tune`` writes such files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, fields
from math import log2
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from fla_triton.plan import Problem, Tile, power_of_two

SCHEMA = "fla-tiles/1"
FARTHEST = 2.0
"""Octaves by which the number of (sequence, head) pairs may differ from the measured one: what is
fast where they fill the chip is slow where they do not."""

UNGATED = 0.5
"""Octaves that an entry is taken to be away for having gates where the problem has none."""

Tiles = TypeVar("Tiles")
Choose = Callable[[Problem, str], Tiles | None]
"""From a problem and a direction to tiles, None for the defaults."""


def no_table(problem: Problem, direction: str) -> None:
    """A table without entries: every plan takes the default tiles."""
    return


@dataclass(frozen=True, slots=True)
class Entry:
    """Tiles measured to be fast.

    Attributes:
        family: whose tiles, a module of host code.
        direction: ``"forward"`` or ``"backward"``.
        itemsize: bytes of an element of q.
        K, V: sizes of keys and values.
        streams: sequences times heads.
        gated: every token had a gate.
        tiles: as plain data.
    """

    family: str
    direction: str
    itemsize: int
    K: int
    V: int
    streams: int
    gated: bool
    tiles: Mapping[str, Any]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Entry:
        """Read one entry of a file."""
        return cls(**{each.name: data[each.name] for each in fields(cls)})

    @property
    def key(self) -> tuple[Any, ...]:
        """What no two entries of a table share."""
        return tuple(getattr(self, each.name) for each in fields(self) if each.name != "tiles")

    def fits(self, problem: Problem, direction: str) -> bool:
        """True when the tiles hold the problem and were measured on one like it.

        Packed sequences take the defaults: nobody measured them, and with tiles that change with
        their number every other batch would compile kernels anew.
        """
        return (
            not problem.packed
            and (self.direction, self.itemsize) == (direction, problem.itemsize)
            and power_of_two(self.K) == power_of_two(problem.K)
            and abs(log2(max(_streams(problem), 1) / self.streams)) <= FARTHEST
        )

    def distance(self, problem: Problem) -> float:
        """How far the problem is from the one that was measured, in octaves."""
        sizes = ((problem.K, self.K), (problem.V, self.V), (_streams(problem), self.streams))
        away = sum(abs(log2(max(mine, 1) / measured)) for mine, measured in sizes)
        return away + UNGATED * (self.gated != problem.gated)


def load(path: Path, family: str, kind: type[Tiles]) -> Choose[Tiles]:
    """Read the entries of one family from a table.

    Args:
        path: of the file.
        family: whose entries.
        kind: the dataclass of its tiles.

    Returns:
        a function from a problem and a direction to the nearest entry's tiles, None without any.

    Raises:
        ValueError: the file is no table of this schema.
    """
    data = checked(json.loads(path.read_text(encoding="utf-8")), str(path))
    entries = [Entry.of(each) for each in data["entries"] if each["family"] == family]
    decoded = [(entry, decode(kind, entry.tiles)) for entry in entries]

    def nearest(problem: Problem, direction: str) -> Tiles | None:
        fitting = [pair for pair in decoded if pair[0].fits(problem, direction)]
        if not fitting:
            return None
        return min(fitting, key=lambda pair: pair[0].distance(problem))[1]

    return nearest


def checked(data: Any, name: str) -> Mapping[str, Any]:
    """Return a table if it is one.

    Raises:
        ValueError: it has another schema.
    """
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        got = repr(data.get("schema")) if isinstance(data, Mapping) else type(data).__name__
        raise ValueError(f"{name}: expected the schema {SCHEMA}, got {got}")
    return data


def encode(tiles: Any) -> dict[str, Any]:
    """Tiles as plain data: numbers as they are, a tile as ``[BK, BV, warps, stages]``."""
    return {each.name: _plain(getattr(tiles, each.name)) for each in fields(tiles)}


def decode(kind: type[Tiles], data: Mapping[str, Any]) -> Tiles:
    """Read what :func:`encode` wrote.

    Raises:
        KeyError: a field is missing.
    """
    hints = get_type_hints(kind)
    found: dict[str, Any] = {}
    for name, hint in hints.items():
        value = data[name]
        if isinstance(value, Mapping):
            found[name] = {stage: Tile(*sizes) for stage, sizes in value.items()}
        else:
            found[name] = Tile(*value) if hint is Tile else value
    return kind(**found)


def _plain(value: Any) -> Any:
    if isinstance(value, Tile):
        return list(astuple(value))
    if isinstance(value, Mapping):
        return {name: list(astuple(tile)) for name, tile in value.items()}
    return value


def _streams(problem: Problem) -> int:
    return problem.sequences * problem.heads
