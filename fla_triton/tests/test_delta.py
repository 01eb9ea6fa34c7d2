"""Delta-rule kernels in Triton's interpreter against the float64 recurrence, and their plans."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest

import programs
from fla_triton.delta_channel_plan import plan as channel_plan
from fla_triton.delta_plan import DeltaPlan, decode_plan, plan
from fla_triton.plan import Problem
from fla_triton.profiles import EVERY, Profile
from interpreter.cases import FILLS, IDLE, PACKED, STATES, case, failures, grouped
from limits import H200, PROBLEM, TINY, Make, launch_faults, misfits, problems

GATED, PLAIN = ("g", "beta"), ("beta",)
ALL = (*GATED, "gk", "gv", "beta_v", *STATES)

SETS = {
    # With few multiprocessors one head fills the chip, and one pass over time makes the outputs.
    "fused": [
        (case("gated_delta_rule", "bfloat16", (1, 150, 1, 60, 100), (*GATED, *STATES)), FILLS),
        (case("delta_rule", "float16", (1, 80, 1, 64, 64), (*PLAIN, *STATES)), FILLS),
        (case("gated_delta_rule", "bfloat16", (1, 0, 1, 16, 17), GATED, (65, 0, 1, 17)), FILLS),
    ],
    "stages": [
        (case("delta_rule", "float32", (1, 70, 1, 16, 16), PLAIN), IDLE),
        (case("gated_delta_rule", "float16", (1, 150, 1, 60, 100), (*GATED, *STATES)), IDLE),
        (case("gated_delta_rule", "float32", (1, 70, 1, 200, 20), (*GATED, *STATES)), IDLE),
        (case("delta_rule", "bfloat16", (1, 100, 1, 20, 16), PLAIN, PACKED[:2]), IDLE),
    ],
    "regimes": [
        (
            case("gated_delta_rule", dtype, (1, 140, 1, 16, 16), (*GATED, *STATES)).but(
                regime=regime
            ),
            IDLE,
        )
        for dtype, regime in (
            ("bfloat16", "resets"),
            ("bfloat16", "fast_decay"),
            ("float16", "long_memory"),
        )
    ],
    "parallel keys": [
        (
            case(contract, dtype, (1, 140, 1, 64, 64), features).but(
                regime="parallel_keys", seed=1
            ),
            processors,
        )
        for contract, dtype, features, processors in (
            ("delta_rule", "bfloat16", PLAIN, FILLS),
            ("gated_delta_rule", "float16", GATED, IDLE),
            ("delta_rule", "float32", PLAIN, IDLE),
        )
    ]
    + [
        # Of these dbeta was 1.6 times the limit where products read the inverse in 16 bits.
        (
            case("delta_rule", dtype, sizes, (*PLAIN, *STATES)).but(
                regime="parallel_keys", seed=seed
            ),
            IDLE,
        )
        for dtype, sizes, seed in (
            ("bfloat16", (2, 129, 2, 16, 16), 0),
            ("float16", (1, 129, 1, 64, 64), 1),
        )
    ],
    "packed": [
        (
            case("gated_delta_rule", "float32", (1, 0, 1, 20, 17), (*GATED, *STATES), PACKED).but(
                regime="resets"
            ),
            IDLE,
        ),
    ],
    # Token by token, however many there are.
    "channels": [
        (
            case(contract, dtype, sizes, (*features, *STATES), direction="fwd", form="recurrent"),
            IDLE,
        )
        for contract, dtype, sizes, features in (
            ("gated_delta_rule", "float32", (1, 20, 1, 16, 33), ("gk", "beta")),
            ("gated_delta_rule", "bfloat16", (2, 33, 1, 20, 17), ("gv", *GATED)),
            ("gated_delta_rule", "float16", (1, 20, 2, 20, 17), ("gk", "gv", "beta_v", *GATED)),
            ("delta_rule", "bfloat16", (1, 33, 1, 20, 40), ("beta_v", *PLAIN)),
            ("delta_rule", "float32", (1, 5, 1, 140, 16), ("beta_v", "l2norm", *PLAIN)),
        )
    ]
    + [
        (
            case(
                "gated_delta_rule", "bfloat16", (1, 0, 1, 16, 17), ALL, (33, 0, 1), direction="fwd"
            ).but(regime="resets"),
            IDLE,
        ),
        # The core makes log decays and strengths of logits; values share keys in the kernel.
        (
            grouped(
                case(
                    "gated_delta_rule",
                    "float16",
                    (1, 20, 1, 16, 17),
                    (*ALL, "gate", "A_log", "dt_bias", "beta_sigmoid", "neg_eigval", "l2norm"),
                    direction="fwd",
                )
            ),
            IDLE,
        ),
        (
            case("delta_rule", "float16", (1, 0, 2, 20, 17), ("beta_v", *PLAIN), (1, 0, 20)).but(
                direction="fwd"
            ),
            IDLE,
        ),
    ],
    "decoding": [
        (case("gated_delta_rule", "bfloat16", (2, 5, 2, 20, 17), (*GATED, *STATES)), IDLE),
        (case("delta_rule", "float32", (1, 0, 2, 140, 33), (*PLAIN, *STATES), (1, 0, 16)), IDLE),
    ],
}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("name", SETS)
def test_interpreted_kernels_are_right(name: str) -> None:
    assert failures(SETS[name]) == {}


SIZES = problems()


def faults(problem: Problem, found: DeltaPlan, profile: Profile) -> list[str]:
    """What a device would refuse, what its compiler gets wrong, or what would be left undone."""
    wrong = []
    for launch in found.launches.values():
        tile = launch.constants
        smallest = found.C == tile["BV"] == profile.dot_minimum
        wrong += launch_faults(launch, profile, profile.operands, smallest)
        if tile["BK"] < problem.K and launch.stage not in ("errors", "outputs", "local"):
            wrong.append(f"{launch.stage}: {tile['BK']} of {problem.K} key channels")
        if launch.stage in ("states", "reverse", "fused"):
            if tile["BV"] == 32:
                wrong.append(f"{launch.stage}: 32 columns")
            columns = launch.grid // (problem.sequences * problem.heads) * tile["BV"]
            if columns < problem.V:
                wrong.append(f"{launch.stage}: {columns} of {problem.V} columns")
    return wrong


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("arch", EVERY)
def test_every_plan_fits_its_device(arch: str, direction: str) -> None:
    assert misfits(plan, faults, SIZES, direction, EVERY[arch]) == {}


def test_the_lint_sees_what_does_not_fit() -> None:
    planned = plan(PROBLEM, "backward", H200)
    text = " ".join(faults(PROBLEM, planned, TINY))
    text += " ".join(faults(replace(PROBLEM, K=200, V=200), planned, H200))
    for word in ("grid", "shared memory", "tile", "threads", "key channels", "columns"):
        assert word in text


BOTH = pytest.mark.parametrize("plan", [plan, channel_plan], ids=["heads", "channels"])


@BOTH
def test_many_heads_are_computed_in_one_pass_and_few_in_stages(plan: Make[DeltaPlan]) -> None:
    assert plan(PROBLEM, "forward", H200).fused
    assert not plan(replace(PROBLEM, sequences=1, heads=4), "forward", H200).fused


@BOTH
def test_length_does_not_choose_the_form(plan: Make[DeltaPlan]) -> None:
    """Else tokens appended to a sequence would change how the earlier ones are rounded."""
    forms = [plan(replace(PROBLEM, longest=t, tokens=2 * t), "forward", H200) for t in (17, 1000)]
    assert len({(found.fused, found.C) for found in forms}) == 1


@pytest.mark.parametrize(
    ("arch", "columns", "channels"),
    [("gfx1100", 16, 16), ("gfx1201", 16, 16), ("gfx1250", 64, 64), ("sm90", 64, 64)],
)
def test_chips_with_few_registers_multiply_less_at_once(
    arch: str, columns: int, channels: int
) -> None:
    """Beside several accumulators; RDNA3 spilled 376 and 1144 bytes a thread of wider tiles."""
    by_head = plan(PROBLEM, "backward", EVERY[arch]).launches
    by_channel = channel_plan(PROBLEM, "backward", EVERY[arch]).launches
    assert by_head["gradients"].constants["BV"] == columns
    assert by_channel["prepare"].constants["BK"] == channels


def test_errors_need_not_hold_all_channels() -> None:
    wide = replace(PROBLEM, K=256, V=256, itemsize=4)
    found = {arch: plan(wide, "backward", EVERY[arch]).launches for arch in ("sm80", "sm90")}
    for stage in ("errors", "local"):
        held = {arch: of[stage].constants["BK"] for arch, of in found.items()}
        assert held == {"sm80": 64, "sm90": 256}
    narrow = plan(PROBLEM, "backward", EVERY["sm80"]).launches
    assert (narrow["errors"].constants["BK"], narrow["local"].constants["BK"]) == (64, 128)


def test_decoding_covers_all_columns() -> None:
    for sequences, v_first in ((2, False), (64, False), (64, True)):
        problem = replace(PROBLEM, sequences=sequences, longest=1, V=129)
        launch = decode_plan(problem, H200, v_first)
        assert launch.grid * launch.constants["BV"] >= sequences * 16 * 129
        wide = sequences > 2 and not v_first
        assert (launch.constants["BV"], launch.warps) == ((64, 4) if wide else (16, 1))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_heads_that_share_keys_have_the_same_errors_in_tiles_of_them() -> None:
    run = programs.run("interpreter.shared")
    assert run.returncode == 0, run.stdout + run.stderr
