"""Tuned tiles: tables of measured configurations, one file a chip, and the nearest entry of one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any

from fla_triton.plan import Problem, Tile, Tiles, power_of_two


@dataclass(frozen=True, slots=True)
class Entry:
    """Tiles measured to be fast for one direction, element size and shape."""

    direction: str
    itemsize: int
    K: int
    V: int
    tiles: Tiles

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Entry:
        """Read one entry of a file."""
        tiles = Tiles(data["BT"], data["R"], Tile(*data["states"]), Tile(*data["chunk"]))
        return cls(data["direction"], data["itemsize"], data["K"], data["V"], tiles)

    def fits(self, problem: Problem, direction: str) -> bool:
        """True when the tiles hold the problem: the same direction, element size and padded K."""
        return (
            (self.direction, self.itemsize) == (direction, problem.itemsize)
            and power_of_two(self.K) == power_of_two(problem.K)
            and power_of_two(self.V) >= min(power_of_two(problem.V), self.tiles.chunk.BV)
        )

    def distance(self, problem: Problem) -> float:
        """How far the shape is from the one that was measured, in octaves."""
        return abs(log2(problem.K / self.K)) + abs(log2(problem.V / self.V))


def load(path: Path) -> Callable[[Problem, str], Tiles | None]:
    """Read a table.

    Returns:
        a function from a problem and a direction to the nearest entry's tiles, None without any.
    """
    entries = tuple(map(Entry.of, json.loads(path.read_text(encoding="utf-8"))["entries"]))

    def nearest(problem: Problem, direction: str) -> Tiles | None:
        fitting = [entry for entry in entries if entry.fits(problem, direction)]
        if not fitting:
            return None
        return min(fitting, key=lambda entry: entry.distance(problem)).tiles

    return nearest
