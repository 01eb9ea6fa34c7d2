"""KDA and GDN-2 kernels in Triton's interpreter against the float64 recurrence, and their plans."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest

from fla_triton.delta_channel_plan import STEPS, THREADED, plan
from fla_triton.delta_plan import OVER_TIME, DeltaPlan
from fla_triton.pieces import SEGMENTS
from fla_triton.plan import Problem
from fla_triton.profiles import EVERY, Profile
from interpreter.cases import FILLS, IDLE, PACKED, STATES, case, failures, grouped
from limits import H200, PROBLEM, TINY, launch_faults, misfits, problems

KEPT = (*STATES, "states")
BOUND = {"lower_bound": -5.0}
RAW = ("l2norm", "gate", "A_log", "dt_bias", "beta_sigmoid")


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
    # Plans of 64 tokens a chunk, of 32 (float32, or because the caller says so) and of 16.
    "states before chunks": [
        (case("kda", "bfloat16", (2, 150, 1, 20, 17), KEPT, direction="fwd"), IDLE),
        (case("gdn2", "float32", (2, 150, 1, 20, 17), KEPT, direction="fwd"), FILLS),
        (case("kda", "float16", (1, 0, 2, 16, 32), KEPT, PACKED, direction="fwd"), IDLE),
        (case("gdn2", "bfloat16", (1, 0, 1, 16, 16), KEPT, (65, 0, 64, 1), direction="fwd"), FILLS),
        (case("kda", "float32", (1, 0, 1, 40, 16), ("states",), PACKED, direction="fwd"), IDLE),
        (
            case("kda", "bfloat16", (1, 100, 1, 16, 16), KEPT, direction="fwd").but(chunk_size=32),
            IDLE,
        ),
        (
            case("kda", "float16", (1, 0, 1, 16, 16), KEPT, PACKED, direction="fwd").but(
                chunk_size=32
            ),
            IDLE,
        ),
        (case("kda", "float16", (1, 5, 1, 16, 16), KEPT, direction="fwd"), IDLE),
        (
            grouped(case("kda", "bfloat16", (1, 70, 1, 16, 16), (*KEPT, *RAW), direction="fwd")),
            IDLE,
        ),
    ],
    # Token by token, however many there are.
    "strengths of value channels": [
        (case("kda", "bfloat16", (2, 33, 1, 20, 17), ("beta_v", *STATES), direction="fwd"), IDLE),
        (case("kda", "float32", (1, 20, 1, 70, 33), ("beta_v", *STATES), direction="fwd"), IDLE),
        (
            case("kda", "float16", (1, 0, 1, 20, 17), ("beta_v", *STATES), (33, 0, 1)).but(
                direction="fwd", regime="resets"
            ),
            IDLE,
        ),
        (
            grouped(case("kda", "bfloat16", (1, 20, 1, 16, 17), ("beta_v", *RAW), direction="fwd")),
            IDLE,
        ),
        (
            grouped(
                case("kda", "float16", (1, 3, 1, 16, 17), ("beta_v", "gate"), direction="fwd")
            ).but(features=frozenset(("beta_v", "gate", "lower_bound")), options=BOUND),
            IDLE,
        ),
    ],
    "decoding": [
        (case("kda", "bfloat16", (2, 5, 2, 20, 17), STATES, direction="fwd"), IDLE),
        (case("gdn2", "bfloat16", (2, 5, 2, 20, 17), STATES, direction="fwd"), IDLE),
        (case("gdn2", "float32", (1, 0, 1, 140, 33), STATES, (1, 0, 16), direction="fwd"), IDLE),
    ],
}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("name", SETS)
def test_interpreted_kernels_are_right(name: str) -> None:
    assert failures(SETS[name]) == {}


SIZES = problems(gated=(True,))


def faults(problem: Problem, found: DeltaPlan, profile: Profile) -> list[str]:
    """What a device would refuse, or what would be left undone."""
    wrong = []
    heads = problem.sequences * problem.heads
    blocks = problem.chunks(found.C) * problem.heads
    for launch in found.launches.values():
        stage, tile = launch.stage, launch.constants
        smallest = found.C == tile.get("BV") == profile.dot_minimum
        wrong += launch_faults(launch, profile, profile.operands, smallest)
        if stage == "beta":
            if launch.grid * tile["BLOCK"] < problem.tokens * problem.heads:
                wrong.append(f"{stage}: {launch.grid} programs")
            continue
        if stage in OVER_TIME and tile["BK"] < problem.K:
            wrong.append(f"{stage}: {tile['BK']} of {problem.K} key channels")
        if stage in OVER_TIME and launch.grid // heads * tile["BV"] < problem.V:
            wrong.append(f"{stage}: {launch.grid} programs")
        if stage == "outputs" and launch.grid // blocks * tile["BV"] < problem.V:
            wrong.append(f"{stage}: {launch.grid} programs")
        parts = blocks * SEGMENTS if stage == "within" else blocks
        if stage in STEPS and launch.grid // parts * tile["BK"] < problem.K:
            wrong.append(f"{stage}: {launch.grid} programs")
        if stage in THREADED and 2 * launch.warps * profile.warp_width < tile["BK"]:
            wrong.append(f"{stage}: {tile['BK']} channels of {launch.warps} warps")
    return wrong


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("arch", EVERY)
def test_every_plan_fits_its_device(arch: str, direction: str) -> None:
    assert misfits(plan, faults, SIZES, direction, EVERY[arch]) == {}


@pytest.mark.parametrize("arch", EVERY)
def test_registers_are_limited_where_a_tile_was_widened(arch: str) -> None:
    """Only NVIDIA's compiler can be told."""
    launches = plan(PROBLEM, "backward", EVERY[arch]).launches
    limited = [stage for stage, launch in launches.items() if launch.registers is not None]
    assert limited == (["across"] if arch == "sm90" else [])


def test_threads_of_hopper_take_two_channels_of_a_segment() -> None:
    found = {arch: plan(PROBLEM, "backward", EVERY[arch]).launches for arch in ("sm90", "sm80")}
    tiles = {arch: (of["within"].constants["BK"], of["within"].warps) for arch, of in found.items()}
    assert tiles == {"sm90": (64, 1), "sm80": (32, 1)}


def test_the_lint_sees_what_does_not_fit() -> None:
    planned = plan(PROBLEM, "backward", H200)
    text = " ".join(faults(PROBLEM, planned, TINY))
    text += " ".join(faults(replace(PROBLEM, K=200, V=200), planned, H200))
    for word in ("grid", "shared memory", "tile", "threads", "key channels", "programs"):
        assert word in text
