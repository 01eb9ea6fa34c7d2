"""Tuned tables: the nearest entry that holds the problem."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fla_triton.plan import Problem, Tile, Tiles
from fla_triton.tables import load

PROBLEM = Problem(2, 2 * 8192, 8192, 16, 128, 128, 2)
ENTRY = {"direction": "forward", "itemsize": 2, "K": 128, "V": 128, "BT": 64, "R": 2}
WIDE = {**ENTRY, "states": [64, 64, 4, 3], "chunk": [128, 128, 4, 1]}
NARROW = {**ENTRY, "V": 64, "states": [64, 64, 4, 3], "chunk": [128, 64, 4, 1]}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "sm90.json"
    path.write_text(json.dumps({"entries": [WIDE, NARROW]}), encoding="utf-8")
    return path


def test_nearest_entry_wins(table: Path) -> None:
    choose = load(table)
    expected = Tiles(64, 2, Tile(64, 64, 4, 3), Tile(128, 128, 4, 1))
    assert choose(PROBLEM, "forward") == expected
    assert choose(replace(PROBLEM, V=60), "forward") == replace(expected, chunk=Tile(128, 64, 4, 1))


def test_other_problems_have_no_entry(table: Path) -> None:
    choose = load(table)
    assert choose(PROBLEM, "backward") is None
    assert choose(replace(PROBLEM, itemsize=4), "forward") is None
    assert choose(replace(PROBLEM, K=64), "forward") is None
