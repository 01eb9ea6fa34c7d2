"""Candidates of a search: within the device, one change at a time, then what helped together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fla_core.plugins.tuning import Measured, Task
from fla_triton import candidates
from fla_triton.families import FAMILIES
from fla_triton.plan import Problem, Tile, Tiles
from fla_triton.profiles import EVERY, PROFILES
from fla_triton.tables import decode, encode
from fla_triton.tuner import SIZES, Tuner, problem_of

PROBLEM = Problem(2, 2 * 8192, 8192, 16, 128, 128, 2, gated=True)
SM90 = PROFILES["sm90"]
DIRECTIONS = ("forward", "backward")


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_defaults_come_first(name: str, direction: str) -> None:
    family = FAMILIES[name]
    first = next(candidates.starts(family, PROBLEM, direction, SM90))
    assert first == family.default(PROBLEM, direction, SM90)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("arch", ["sm90", "sm120", "gfx942"])
def test_neighbours_differ_in_one_stage_and_fit(name: str, direction: str, arch: str) -> None:
    family, profile = FAMILIES[name], EVERY[arch]
    base = family.default(PROBLEM, direction, profile)
    near = list(candidates.neighbours(family, PROBLEM, direction, profile, base))
    assert len(near) > 4
    assert base not in near
    for tiles in near:
        changed = [n for n, t in candidates.parts(tiles).items() if candidates.parts(base)[n] != t]
        assert len(changed) == 1
        assert min(profile.columns, 128) <= candidates.parts(tiles)[changed[0]].BV
        if changed[0] in family.whole:
            assert candidates.parts(tiles)[changed[0]].BK == candidates.parts(base)[changed[0]].BK
        launches = family.plan(PROBLEM, direction, profile, tiles).launches.values()
        assert max(launch.shared for launch in launches) <= profile.operands


def test_a_fused_and_a_staged_form_are_both_tried() -> None:
    found = candidates.starts(FAMILIES["delta"], PROBLEM, "forward", SM90)
    assert {tuple(tiles.stages) for tiles in found} == {
        ("prepare", "fused"),
        ("prepare", "states", "outputs"),
    }


def test_what_helped_is_joined() -> None:
    base = Tiles(64, 1, Tile(64, 64, 4, 3), Tile(128, 128, 4, 1))
    deeper = replace(base, states=replace(base.states, stages=4))
    wider = replace(base, states=replace(base.states, BV=128))
    more = replace(base, chunk=replace(base.chunk, warps=8))
    measured = [(deeper, 0.9), (wider, 0.8), (more, 0.95), (replace(base, BT=32), 0.1)]
    joined = candidates.together(base, 1.0, measured)
    assert joined == replace(base, states=wider.states, chunk=more.chunk)
    assert candidates.together(base, 1.0, [(deeper, 0.9), (more, 0.995)]) is None


def test_rounds_end() -> None:
    tuner = Tuner("fla_triton", "cuda", SM90)
    forward = next(t for t in tuner.tasks(["simple_gla"]) if t.direction == "forward")
    starts = tuner.candidates(forward, 0, ())
    found = [Measured(tiles, 1.0 - 0.01 * i) for i, tiles in enumerate(starts)]
    found[-1] = Measured(starts[-1], None, "wrong")
    base = starts[-2]
    near = tuner.candidates(forward, 1, found)
    assert near
    assert not any(tiles in starts for tiles in near)
    assert all(tiles["BT"] == base["BT"] for tiles in near)
    chunk = next(tiles for tiles in near if tiles["chunk"] != base["chunk"])
    states = next(tiles for tiles in near if tiles["states"] != base["states"])
    found += [Measured(t, 0.1 if t in (chunk, states) else 2.0) for t in near]
    joined = {**base, "chunk": chunk["chunk"], "states": states["states"]}
    assert tuner.candidates(forward, 2, found) == [joined]
    assert tuner.candidates(forward, 3, found) == []
    assert tuner.candidates(forward, 1, [Measured(starts[0], None, "wrong")]) == []


def test_tasks_and_document() -> None:
    tuner = Tuner("fla_triton", "cuda", SM90, dtypes=("bfloat16", "float32"))
    tasks = tuner.tasks(["simple_gla", "linear_attn", "kda", "gdn2"])
    families = {(t.family, t.operator) for t in tasks}
    # gdn2 runs on the kernels of kda.
    assert families == {
        ("scalar_decay", "chunk_simple_gla"),
        ("scalar_decay", "chunk_linear_attn"),
        ("delta_channel", "chunk_kda"),
    }
    assert len(tasks) == 3 * 2 * 2 * len(SIZES)
    task = next(task for task in tasks if task.sizes["B"] == 2)
    assert problem_of(task).gated == (task.operator == "chunk_simple_gla")
    won, default = Measured({"BT": 64}, 0.1), Measured({"BT": 32}, 0.2)
    document = tuner.document([(task, won, default)], {"device": "a chip"}, None)
    (entry,) = document["entries"]
    assert entry["measured"] == {"device": "a chip"}
    assert (entry["family"], entry["streams"], entry["tiles"]) == (task.family, 32, {"BT": 64})
    assert (entry["ms"], entry["default_ms"]) == (0.1, 0.2)


def test_other_entries_of_a_table_are_kept() -> None:
    tuner = Tuner("fla_triton", "cuda", SM90)
    first, second, *_ = tuner.tasks(["simple_gla"])
    slow, fast = Measured({"BT": 32}, 0.2), Measured({"BT": 64}, 0.1)
    before = tuner.document([(first, slow, slow), (second, slow, slow)], {}, None)
    after = tuner.document([(first, fast, slow)], {}, before)
    assert [(e["direction"], e["ms"]) for e in after["entries"]] == [
        (second.direction, 0.2),
        (first.direction, 0.1),
    ]
    with pytest.raises(ValueError, match="the earlier table: expected the schema"):
        tuner.document([(first, fast, slow)], {}, {"entries": []})
    with pytest.raises(ValueError, match="the table is of 'sm80', not of 'sm90'"):
        tuner.document([(first, fast, slow)], {}, {**before, "arch": "sm80"})


def test_tables_lie_in_the_package() -> None:
    tuner = Tuner("fla_triton", "cuda", SM90)
    assert tuner.table == Path(candidates.__file__).parent / "tables" / "sm90.json"


def test_only_the_direction_that_is_tuned_takes_the_tiles() -> None:
    pytest.importorskip("triton")
    tuner = Tuner("fla_triton", "cpu", SM90)
    task = Task("scalar_decay", "backward", "chunk_simple_gla", {**_small()}, "float32")
    problem = problem_of(task)
    tiles = tuner.candidates(task, 0, ())[-1]
    served = {one.contract: one for one in tuner.serving(task, tiles).fla_implementations()}
    assert set(served) == {"simple_gla", "linear_attn"}
    choose = served["simple_gla"].forward.__self__.choose
    assert choose(problem, "backward") == decode(Tiles, tiles)
    assert encode(choose(problem, "backward")) == tiles
    assert choose(problem, "forward") is None


def _small() -> dict[str, int]:
    return {"B": 1, "T": 128, "H": 1, "K": 16, "V": 16}
