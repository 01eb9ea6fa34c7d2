"""KDA and GDN-2 kernels in Triton's interpreter against the float64 recurrence, and their plans."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from fla_triton.delta_channel_plan import STEPS, THREADED, plan
from fla_triton.delta_plan import OVER_TIME, DeltaPlan
from fla_triton.pieces import SEGMENTS
from fla_triton.plan import Problem
from fla_triton.profiles import EVERY, PROFILES, Profile
from interpreter.cases import FILLS, IDLE, STATES, case, failures
from limits import plans

SETS = {
    # With few multiprocessors one head fills the chip, and one pass over time makes the outputs.
    "fused": [
        (case("kda", "bfloat16", (1, 70, 1, 40, 80), STATES), FILLS),
        (case("gdn2", "float16", (1, 0, 1, 16, 17), STATES, (65, 0, 1)), FILLS),
        (case("kda", "bfloat16", (1, 70, 1, 32, 32), ()).but(regime="parallel_keys"), FILLS),
    ],
    "stages": [
        (
            case("kda", "float32", (1, 0, 1, 20, 17), STATES, (33, 0, 1, 40)).but(regime="resets"),
            IDLE,
        ),
        (case("gdn2", "float32", (1, 40, 1, 16, 20), STATES), IDLE),
        (case("kda", "float16", (1, 40, 1, 70, 20), STATES), IDLE),
        (case("gdn2", "bfloat16", (1, 70, 1, 20, 70), ()), IDLE),
        (case("kda", "float32", (1, 40, 1, 16, 16), ()).but(regime="parallel_keys"), IDLE),
    ],
    "regimes": [
        (case(contract, dtype, (1, 70, 1, 16, 16), STATES).but(regime=regime), IDLE)
        for contract, dtype, regime in (
            ("kda", "bfloat16", "resets"),
            ("kda", "bfloat16", "fast_decay"),
            ("kda", "float16", "long_memory"),
            ("gdn2", "float16", "parallel_keys"),
        )
    ],
    "decoding": [
        (case("kda", "bfloat16", (2, 5, 2, 20, 17), STATES, direction="fwd"), IDLE),
        (case("gdn2", "bfloat16", (2, 5, 2, 20, 17), STATES, direction="fwd"), IDLE),
        (case("gdn2", "float32", (1, 0, 1, 140, 33), STATES, (1, 0, 16), direction="fwd"), IDLE),
    ],
}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("name", SETS)
def test_interpreted_kernels_are_right(name: str, tmp_path: Path) -> None:
    assert failures(SETS[name], tmp_path) == {}


SIZES = [
    Problem(n, n * t, t, h, k, v, itemsize, packed, True)
    for (n, t), h, (k, v), itemsize, packed in product(
        ((1, 17), (2, 8192), (1, 131072), (2000, 33)),
        (1, 16, 96),
        ((1, 1), (16, 8), (60, 100), (64, 64), (100, 129), (128, 128), (256, 256), (256, 512)),
        (2, 4),
        (False, True),
    )
]
PROBLEM = Problem(2, 2 * 8192, 8192, 16, 128, 128, 2, gated=True)
H200 = PROFILES["sm90"]


def faults(problem: Problem, found: DeltaPlan, profile: Profile) -> list[str]:
    """What a device would refuse, or what would be left undone."""
    wrong = []
    heads = problem.sequences * problem.heads
    blocks = problem.chunks(found.C) * problem.heads
    for launch in found.launches.values():
        stage, tile = launch.stage, launch.constants
        if not 0 < launch.grid <= profile.grid_limit:
            wrong.append(f"{stage}: grid {launch.grid}")
        # What the smallest tiles take can only be said by the compiler.
        smallest = found.C == tile.get("BV") == profile.dot_minimum
        if launch.shared > profile.operands and not smallest:
            wrong.append(f"{stage}: {launch.shared} bytes of shared memory")
        if stage == "beta":
            if launch.grid * tile["BLOCK"] < problem.tokens * problem.heads:
                wrong.append(f"{stage}: {launch.grid} programs")
            continue
        sides = (tile["BK"], tile["BV"], found.C)
        if any(side < profile.dot_minimum or side & (side - 1) for side in sides):
            wrong.append(f"{stage}: tile {sides}")
        if stage in OVER_TIME and tile["BK"] < problem.K:
            wrong.append(f"{stage}: {tile['BK']} of {problem.K} key channels")
        if stage in OVER_TIME and launch.grid // heads * tile["BV"] < problem.V:
            wrong.append(f"{stage}: {launch.grid} programs")
        if stage == "outputs" and launch.grid // blocks * tile["BV"] < problem.V:
            wrong.append(f"{stage}: {launch.grid} programs")
        parts = blocks * SEGMENTS if stage == "within" else blocks
        if stage in STEPS and launch.grid // parts * tile["BK"] < problem.K:
            wrong.append(f"{stage}: {launch.grid} programs")
        if stage in THREADED and launch.warps * profile.warp_width < tile["BK"]:
            wrong.append(f"{stage}: {tile['BK']} channels of {launch.warps} warps")
    return wrong


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("arch", EVERY)
def test_every_plan_fits_its_device(arch: str, direction: str) -> None:
    profile = EVERY[arch]
    made = plans(plan, SIZES, direction, profile)
    found = {p: faults(p, one, profile) for p, one in made.items()}
    assert {p: wrong for p, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("arch", EVERY)
def test_registers_are_limited_where_a_tile_was_widened(arch: str) -> None:
    """Only NVIDIA's compiler can be told."""
    launches = plan(PROBLEM, "backward", EVERY[arch]).launches
    limited = [stage for stage, launch in launches.items() if launch.registers is not None]
    assert limited == (["across"] if arch == "sm90" else [])


def test_the_lint_sees_what_does_not_fit() -> None:
    planned = plan(PROBLEM, "backward", H200)
    profile = replace(H200, shared_memory=1024, grid_limit=10, dot_minimum=128)
    text = " ".join(faults(PROBLEM, planned, profile))
    text += " ".join(faults(replace(PROBLEM, K=200, V=200), planned, H200))
    for word in ("grid", "shared memory", "tile", "key channels", "programs"):
        assert word in text


def test_many_heads_are_computed_in_one_pass_and_few_in_stages() -> None:
    assert plan(PROBLEM, "forward", H200).fused
    assert not plan(replace(PROBLEM, sequences=1, heads=4), "forward", H200).fused


def test_length_does_not_choose_the_form() -> None:
    """Else tokens appended to a sequence would change how the earlier ones are rounded."""
    forms = [plan(replace(PROBLEM, longest=t, tokens=2 * t), "forward", H200) for t in (17, 1000)]
    assert len({(found.fused, found.C) for found in forms}) == 1
