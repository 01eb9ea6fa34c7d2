"""Tuned tables: what is written is read again, and the nearest entry that holds a problem wins."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fla_triton.delta_plan import DeltaTiles
from fla_triton.families import FAMILIES
from fla_triton.plan import Problem, Tile, Tiles
from fla_triton.profiles import PROFILES
from fla_triton.tables import SCHEMA, decode, encode, load

PROBLEM = Problem(2, 2 * 8192, 8192, 16, 128, 128, 2, gated=True)
WIDE = Tiles(64, 2, Tile(64, 64, 4, 3), Tile(128, 128, 4, 1))
NARROW = replace(WIDE, chunk=Tile(128, 64, 4, 1))
PLAIN = replace(WIDE, R=1)


def entry(tiles: Any, **more: Any) -> dict[str, Any]:
    known = {"family": "scalar_decay", "direction": "forward", "itemsize": 2, "K": 128, "V": 128}
    measured = {"streams": 32, "gated": True, "ms": 0.2, "default_ms": 0.25}
    return {**known, **measured, "tiles": encode(tiles), **more}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "sm90.json"
    delta = DeltaTiles(64, {"states": Tile(128, 64, 4, 3)})
    entries = [
        entry(WIDE),
        entry(NARROW, V=64),
        entry(PLAIN, gated=False),
        entry(delta, family="delta"),
    ]
    path.write_text(json.dumps({"schema": SCHEMA, "entries": entries}), encoding="utf-8")
    return path


def test_nearest_entry_wins(table: Path) -> None:
    choose = load(table, "scalar_decay", Tiles)
    assert choose(PROBLEM, "forward") == WIDE
    assert choose(replace(PROBLEM, V=60), "forward") == NARROW
    assert choose(replace(PROBLEM, gated=False), "forward") == PLAIN
    assert choose(replace(PROBLEM, sequences=8), "forward") == WIDE


def test_families_do_not_see_each_other(table: Path) -> None:
    expected = DeltaTiles(64, {"states": Tile(128, 64, 4, 3)})
    assert load(table, "delta", DeltaTiles)(PROBLEM, "forward") == expected
    assert load(table, "channel_decay", Tiles)(PROBLEM, "forward") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"itemsize": 4},
        {"K": 64},
        {"sequences": 1, "heads": 4},
        {"sequences": 500},
        {"packed": True},
    ],
)
def test_other_problems_have_no_entry(table: Path, changes: dict[str, int]) -> None:
    choose = load(table, "scalar_decay", Tiles)
    assert choose(PROBLEM, "backward") is None
    assert choose(replace(PROBLEM, **changes), "forward") is None


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_tiles_come_back_as_they_were(name: str, direction: str) -> None:
    family = FAMILIES[name]
    tiles = family.default(PROBLEM, direction, PROFILES["sm90"])
    written = json.loads(json.dumps(encode(tiles)))
    assert decode(family.tiles, written) == tiles


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "sm90.json"
    path.write_text('{"schema": "fla-tiles/0", "entries": []}', encoding="utf-8")
    with pytest.raises(ValueError, match="expected the schema fla-tiles/1, got 'fla-tiles/0'"):
        load(path, "scalar_decay", Tiles)
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="expected the schema fla-tiles/1, got list"):
        load(path, "scalar_decay", Tiles)
