"""Tiles worth trying: around the defaults, one change at a time, then all that helped together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from fla_triton.families import Family
from fla_triton.plan import Problem, Tile, power_of_two
from fla_triton.profiles import Profile

LARGEST = {"BT": 64, "C": 64, "R": 2}
"""Largest value of each number among tiles; the smallest are the device's dot and 1."""

WARPS, STAGES = (2, 8), (1, 4)
"""Fewest and most of a program."""

GAIN = 0.99
"""A change helps when the time falls below this part of what it was."""


def starts(family: Family, problem: Problem, direction: str, profile: Profile) -> Iterator[Any]:
    """The defaults; those of fewer and of more heads; each with its chunks halved and doubled."""
    found: list[Any] = []
    for streams in (problem.sequences, 1, 1024):
        other = replace(problem, sequences=streams, heads=problem.heads if streams > 1 else 1)
        found.append(family.default(other, direction, profile))
    for tiles in list(found):
        found += _resized(tiles, profile)
    yield from _fitting(family, problem, direction, profile, found)


def neighbours(
    family: Family, problem: Problem, direction: str, profile: Profile, base: Any
) -> Iterator[Any]:
    """The base with one of its stages changed."""
    found = [
        with_part(base, name, other)
        for name, tile in parts(base).items()
        for other in _changed(tile, problem, profile, name in family.whole)
    ]
    yield from _fitting(family, problem, direction, profile, found)


def together(base: Any, base_ms: float, measured: Sequence[tuple[Any, float]]) -> Any | None:
    """The base with the best change of every stage that any change helped; None if none did."""
    best: dict[str, tuple[float, Tile]] = {}
    for tiles, ms in measured:
        changed = [n for n, tile in parts(tiles).items() if parts(base).get(n) != tile]
        if len(changed) == 1 and ms < GAIN * base_ms:
            (name,) = changed
            best[name] = min(best.get(name, (ms, parts(tiles)[name])), (ms, parts(tiles)[name]))
    if len(best) < 2:
        return None
    for name, (_, tile) in best.items():
        base = with_part(base, name, tile)
    return base


def parts(tiles: Any) -> dict[str, Tile]:
    """The tiles of the stages, by name."""
    found: dict[str, Tile] = {}
    for each in fields(tiles):
        value = getattr(tiles, each.name)
        if isinstance(value, Tile):
            found[each.name] = value
        elif isinstance(value, Mapping):
            found |= value
    return found


def with_part(tiles: Any, name: str, tile: Tile) -> Any:
    """The same with another tile of one stage."""
    for each in fields(tiles):
        value = getattr(tiles, each.name)
        if each.name == name:
            return replace(tiles, **{name: tile})
        if isinstance(value, Mapping) and name in value:
            return replace(tiles, **{each.name: {**value, name: tile}})
    raise KeyError(name)


def _resized(tiles: Any, profile: Profile) -> list[Any]:
    found = []
    for name, most in LARGEST.items():
        size = getattr(tiles, name, None)
        least = 1 if name == "R" else profile.dot_minimum
        sizes = _around(size, least, most) if size else ()
        found += [replace(tiles, **{name: other}) for other in sizes]
    return found


def _changed(tile: Tile, problem: Problem, profile: Profile, whole: bool) -> Iterator[Tile]:
    # Narrower tiles of 16-bit factors are known to be miscompiled.
    least = profile.columns if problem.itemsize == 2 else profile.dot_minimum
    columns = _around(tile.BV, least, power_of_two(problem.V))
    rows = [] if whole else _around(tile.BK, least, power_of_two(problem.K))
    warps, depths = _around(tile.warps, *WARPS), [tile.stages - 1, tile.stages + 1]
    for size in columns:
        yield replace(tile, BV=size)
    for size in rows:
        yield replace(tile, BK=size)
    for size in warps:
        yield replace(tile, warps=size)
    for size in depths:
        if STAGES[0] <= size <= STAGES[1]:
            yield replace(tile, stages=size)
    for size in columns:
        if (count := tile.warps * size // tile.BV) in warps:
            yield replace(tile, BV=size, warps=count)
        if size < tile.BV and tile.stages < STAGES[1]:
            yield replace(tile, BV=size, stages=tile.stages + 1)


def _around(size: int, low: int, high: int) -> list[int]:
    return [other for other in (size // 2, size * 2) if low <= other <= high]


def _fitting(
    family: Family, problem: Problem, direction: str, profile: Profile, found: Sequence[Any]
) -> Iterator[Any]:
    """Each once, those left out that no program of the device can hold."""
    seen: list[Any] = []
    for tiles in found:
        if tiles in seen:
            continue
        seen.append(tiles)
        launches = family.plan(problem, direction, profile, tiles).launches.values()
        if max(launch.shared for launch in launches) <= profile.operands:
            yield tiles
