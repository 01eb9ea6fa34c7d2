"""Every plan over a table of sizes, for every shipped profile."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from fla_core.errors import UnsupportedError
from fla_triton.plan import (
    Plan,
    Problem,
    decode_plan,
    default_tiles,
    plan,
    power_of_two,
    split_of_time,
)
from fla_triton.profiles import AMD, EVERY, PROFILES, Profile
from limits import H200, PROBLEM, TINY, launch_faults, misfits, problems, segment_faults

SIZES = problems()


def faults(problem: Problem, found: Plan, profile: Profile, direction: str) -> list[str]:
    """What a device would refuse, or what would leave part of the work undone."""
    wrong, tiles = [], found.tiles
    for launch in found.launches.values():
        halved = launch.stage == "chunks"
        most = profile.operands if halved else profile.shared_memory
        smallest = halved and tiles.BT == tiles.chunk.BV == profile.dot_minimum
        wrong += launch_faults(launch, profile, most, smallest)
    # Outputs of one block a chunk are summed over tiles of channels; nothing else is.
    summed = direction == "forward" and tiles.R == 1
    if tiles.chunk.BK < problem.K and not summed:
        wrong.append(f"{tiles.chunk.BK} of {problem.K} key channels")
    if tiles.R not in (1, 2):
        wrong.append(f"{tiles.R} blocks a chunk")
    return wrong + segment_faults(problem, found)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("arch", EVERY)
def test_every_plan_fits_its_device(arch: str, direction: str) -> None:
    lint = partial(faults, direction=direction)
    assert misfits(plan, lint, SIZES, direction, EVERY[arch]) == {}


@pytest.mark.parametrize("arch", EVERY)
def test_wide_outputs_of_float32_take_64_channels_at_once(arch: str) -> None:
    """Gradients, and factors of 16 bits, take all of them."""
    for keys, itemsize, direction, rows in (
        (129, 4, "forward", 64),
        (256, 4, "forward", 64),
        (128, 4, "forward", 128),
        (256, 4, "backward", 256),
        (256, 2, "forward", 256),
        (256, 2, "backward", 256),
    ):
        found = plan(replace(PROBLEM, K=keys, itemsize=itemsize), direction, EVERY[arch])
        assert found.launches["chunks"].constants["BK"] == rows
        assert found.tiles.R == 1 or rows >= keys


@pytest.mark.parametrize("arch", ["gfx90a", "gfx1100"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_more_threads_than_a_launch_may_have_are_refused(arch: str, direction: str) -> None:
    vast = Problem(2000, 2000 * 16384, 16384, 96, 128, 128, 2)
    assert plan(vast, direction, H200).launches["chunks"].grid > 2**32 // 256
    with pytest.raises(UnsupportedError) as refused:
        plan(vast, direction, AMD[arch])
    assert f"chunks on {arch}: a launch of " in str(refused.value)
    assert "fewer than 4294967296 threads: split the batch" in str(refused.value)
    with pytest.raises(UnsupportedError, match="decode on gfx942: a launch of 1000000000 programs"):
        decode_plan(replace(vast, sequences=10**9, heads=1, K=16, V=16), AMD["gfx942"])


def test_the_lint_sees_what_does_not_fit() -> None:
    wide = replace(PROBLEM, K=200, longest=9000)
    planned = plan(PROBLEM, "forward", H200)
    text = " ".join(faults(PROBLEM, planned, TINY, "forward"))
    text += " ".join(faults(wide, planned, H200, "forward"))
    for word in ("grid", "shared memory", "tile", "threads", "key channels", "segments"):
        assert word in text
    missed = "128 of 200 key channels"
    for blocks, direction, seen in ((2, "forward", 1), (1, "forward", 0), (1, "backward", 1)):
        narrow = replace(planned, tiles=replace(planned.tiles, R=blocks))
        assert faults(wide, narrow, H200, direction).count(missed) == seen


@pytest.mark.parametrize("arch", AMD)
def test_chips_with_narrow_warps_take_more_of_them_and_shorter_blocks(arch: str) -> None:
    profile = AMD[arch]
    tiles = default_tiles(PROBLEM, "backward", profile)
    narrow = profile.warp_width == 32
    assert (tiles.chunk.warps, tiles.BT) == ((8, 32) if narrow else (4, 64))
    state, chunk = tiles.states, tiles.chunk_size
    assert (state.BK, state.stages) == ((32, 2) if profile.depth == 16 else (64, 3))
    assert (state.BK + state.BV) * chunk * 2 * state.stages <= profile.shared_memory


def test_few_heads_are_cut_along_time() -> None:
    few = replace(PROBLEM, sequences=1, heads=1)
    segments, span = split_of_time(few, default_tiles(few, "forward", H200), H200)
    assert segments >= 3
    assert (segments - 1) * span < 64 <= segments * span


@pytest.mark.parametrize("itemsize", [2, 4])
def test_narrow_tiles_are_widened_where_the_compiler_gets_them_wrong(itemsize: int) -> None:
    problem = Problem(1, 200, 200, 2, 16, 8, itemsize)
    chunk = plan(problem, "forward", PROFILES["sm90"]).launches["chunks"].constants
    assert (chunk["BK"], chunk["BV"]) == ((64, 64) if itemsize == 2 else (16, 16))
    chunk = plan(problem, "forward", PROFILES["sm80"]).launches["chunks"].constants
    assert (chunk["BK"], chunk["BV"]) == (16, 16)


def test_many_heads_are_not() -> None:
    tiles = default_tiles(PROBLEM, "forward", H200)
    assert split_of_time(PROBLEM, tiles, H200) == (1, 64)


def test_slots_of_packed_sequences_hold_their_chunks() -> None:
    packed = replace(PROBLEM, sequences=5, tokens=213, longest=130, packed=True)
    assert packed.chunks(64) >= sum(-(-n // 64) for n in (65, 0, 1, 130, 17))
    assert replace(packed, tokens=5, longest=1).chunks(64) == 5


@pytest.mark.parametrize("size", [1, 16, 17, 64, 100, 256])
def test_power_of_two(size: int) -> None:
    found = power_of_two(size)
    assert found >= max(size, 16)
    assert found & (found - 1) == 0
    assert found == 16 or found < 2 * size


def test_decoding_covers_all_columns() -> None:
    launch = decode_plan(replace(PROBLEM, longest=1, V=129), PROFILES["sm90"])
    assert launch.grid * launch.constants["BV"] >= 2 * 16 * 129
