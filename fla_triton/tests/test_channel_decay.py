"""Channel decays: kernels in the interpreter against the float64 recurrence, and their plans."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest

from fla_triton.channel_plan import default_tiles, plan, stage_tile
from fla_triton.plan import Plan, Problem
from fla_triton.profiles import EVERY, PROFILES, Profile
from interpreter.cases import FILLS, IDLE, STATES, case, failures
from limits import H200, PROBLEM, TINY, launch_faults, misfits, problems, segment_faults

GATED = ("gk", *STATES)
SETS = {
    "dtypes": [
        (case("gla", "float32", (1, 40, 2, 16, 16), ("gk",)), FILLS),
        (case("gla", "bfloat16", (1, 70, 1, 80, 90), GATED), FILLS),
        (case("gla", "float16", (1, 66, 1, 16, 24), GATED), FILLS),
        (case("gla", "bfloat16", (2, 5, 1, 20, 17), GATED), FILLS),
        (case("gla", "float16", (2, 5, 1, 20, 17), GATED), FILLS),
    ],
    "packed": [
        (case("gla", "float32", (1, 0, 1, 20, 17), GATED, (33, 0, 1)).but(regime="resets"), FILLS),
        (case("gla", "bfloat16", (1, 0, 2, 16, 16), GATED, (65, 0, 1, 17)), FILLS),
        # Cut in time.
        (case("gla", "float32", (1, 0, 1, 16, 16), GATED, (390, 0, 5)), IDLE),
    ],
    # Token by token, however many there are.
    "value channels": [
        (case("gla", dtype, sizes, features, direction="fwd"), FILLS)
        for dtype, sizes, features in (
            ("bfloat16", (2, 40, 2, 20, 17), ("gv", *GATED)),
            ("float32", (1, 20, 1, 70, 33), ("gv", *STATES)),
            ("float16", (1, 33, 1, 16, 16), ("gk", "gv")),
        )
    ]
    + [
        (
            case(
                "gla", "float32", (1, 0, 1, 20, 17), ("gv", *GATED), (33, 0, 1), direction="fwd"
            ).but(regime="resets"),
            FILLS,
        ),
    ],
    "regimes": [
        (case("gla", dtype, (1, tokens, 1, 16, 16), GATED).but(regime=regime), FILLS)
        for dtype, tokens, regime in (
            ("float32", 40, "resets"),
            ("float16", 66, "resets"),
            ("bfloat16", 66, "fast_decay"),
            ("float16", 66, "long_memory"),
        )
    ],
}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("name", SETS)
def test_interpreted_kernels_are_right(name: str) -> None:
    assert failures(SETS[name]) == {}


SIZES = problems(gated=(False,))


def faults(problem: Problem, found: Plan, profile: Profile) -> list[str]:
    """What a device would refuse, or what would leave part of the work undone."""
    wrong = []
    for launch in found.launches.values():
        wrong += launch_faults(launch, profile, profile.shared_memory)
        levels = launch.constants.get("LEVELS")
        if levels is not None and 1 << levels != launch.constants["C"]:
            wrong.append(f"{launch.stage}: {levels} levels")
    return wrong + segment_faults(problem, found)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("arch", EVERY)
def test_every_plan_fits_its_device(arch: str, direction: str) -> None:
    assert misfits(plan, faults, SIZES, direction, EVERY[arch]) == {}


def test_the_lint_sees_what_does_not_fit() -> None:
    planned = plan(PROBLEM, "backward", H200)
    text = " ".join(faults(PROBLEM, planned, TINY))
    text += " ".join(faults(replace(PROBLEM, longest=9000), planned, H200))
    for word in ("grid", "shared memory", "tile", "threads", "segments"):
        assert word in text


def test_columns_cover_values() -> None:
    problem = Problem(2, 2 * 8192, 8192, 16, 128, 512, 2)
    profile = PROFILES["sm90"]
    tiles = default_tiles(problem, "forward", profile)
    launch = plan(problem, "forward", profile).launches["outputs"]
    assert launch.grid * stage_tile(tiles, "outputs").BV >= 2 * 128 * 16 * 512


@pytest.mark.parametrize(
    ("arch", "prepared", "derived"),
    [
        ("gfx1100", 16, (16, 16)),
        ("gfx1250", 64, (32, 64)),
        ("sm80", 64, (32, 64)),
        ("sm90", 64, (64, 64)),
    ],
)
def test_chips_that_multiply_out_of_registers_take_fewer_channels(
    arch: str, prepared: int, derived: tuple[int, int]
) -> None:
    launches = plan(PROBLEM, "backward", EVERY[arch]).launches
    constants = launches["gradients"].constants
    assert launches["prepare"].constants["BK"] == prepared
    assert (constants["BK"], constants["BV"]) == derived
