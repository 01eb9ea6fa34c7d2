"""The shipped tables: every entry can run, and each problem finds the one that was meant for it."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from fla_triton import plan
from fla_triton.families import FAMILIES
from fla_triton.plan import Problem, Tile, Tiles, held
from fla_triton.profiles import PROFILES
from fla_triton.tables import SCHEMA, Entry, decode, load

SM90 = Path(str(files("fla_backend_cuda") / "tables" / "sm90.json"))
PROFILE = PROFILES["sm90"]
MAIN = Problem(2, 2 * 8192, 8192, 16, 128, 128, 2)
DEEP, TALL = Tile(64, 64, 4, 4), Tile(128, 64, 4, 3)


def entries() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(SM90.read_text(encoding="utf-8"))["entries"]
    return found


def test_it_is_a_table_of_its_chip() -> None:
    document = json.loads(SM90.read_text(encoding="utf-8"))
    assert (document["schema"], document["arch"]) == (SCHEMA, "sm90")
    keys = [Entry.of(entry).key for entry in entries()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("entry", entries(), ids=lambda e: f"{e['direction']}-{e['streams']}")
def test_every_entry_is_measured_and_runs(entry: dict[str, Any]) -> None:
    family = FAMILIES[entry["family"]]
    tiles = decode(family.tiles, entry["tiles"])
    problem = replace(MAIN, sequences=entry["streams"] // 16, gated=entry["gated"])
    assert (entry["K"], entry["V"], entry["itemsize"]) == (problem.K, problem.V, problem.itemsize)
    planned = family.plan(problem, entry["direction"], PROFILE, tiles)
    assert max(launch.shared for launch in planned.launches.values()) <= PROFILE.operands
    # Nothing is widened behind the back of who measured it.
    assert all(held(tile, problem, PROFILE) == tile for tile in (tiles.states, tiles.chunk))
    default = family.default(problem, entry["direction"], PROFILE)
    assert (entry["ms"] < entry["default_ms"]) == (tiles != default)
    assert entry["ms"] <= entry["default_ms"]
    assert {"device", "torch", "triton"} <= set(entry["measured"])


@pytest.mark.parametrize(
    ("changes", "states"),
    [
        ({}, DEEP),
        ({"gated": True}, None),
        ({"sequences": 4}, None),
        ({"sequences": 4, "gated": True}, TALL),
        ({"sequences": 8, "gated": True}, TALL),
        ({"sequences": 1}, None),
        ({"sequences": 1, "heads": 8}, None),
    ],
)
def test_the_nearest_entry_is_the_one_that_was_meant(
    changes: dict[str, Any], states: Tile | None
) -> None:
    problem = replace(MAIN, **changes)
    found = load(SM90, "scalar_decay", Tiles)(problem, "forward")
    default = plan.default_tiles(problem, "forward", PROFILE)
    assert found == (default if states is None else replace(default, states=states))


@pytest.mark.parametrize(
    "changes", [{"packed": True}, {"K": 64}, {"itemsize": 4}, {"sequences": 64}]
)
def test_what_was_not_measured_takes_the_defaults(changes: dict[str, Any]) -> None:
    choose = load(SM90, "scalar_decay", Tiles)
    assert choose(replace(MAIN, **changes), "forward") is None
    assert choose(MAIN, "backward") is None


def test_no_length_changes_the_tiles() -> None:
    choose = load(SM90, "scalar_decay", Tiles)
    chosen = {str(choose(replace(MAIN, longest=n, tokens=2 * n), "forward")) for n in (17, 4096)}
    assert len(chosen) == 1
