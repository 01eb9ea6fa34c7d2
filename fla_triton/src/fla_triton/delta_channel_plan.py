"""Launch plans of delta rules whose key channels decay separately."""

from __future__ import annotations

from dataclasses import replace

from fla_triton import delta_plan
from fla_triton.delta_plan import OVER_TIME, DeltaPlan, DeltaTiles, fuses, on_chip, shrunk
from fla_triton.pieces import SEGMENTS
from fla_triton.plan import Launch, Problem, Tile, held, power_of_two, startable
from fla_triton.profiles import Profile

STEPS = ("segments", "across", "within")
"""Kernels of the gradients of keys, queries and gates, in order."""

THREADED = ("segments", "within")
"""Those of them whose threads take a channel or two, and which multiply no matrices."""

STAGES = {
    "forward": ("prepare", "states", "outputs"),
    "fused": ("prepare", "fused"),
    "backward": ("prepare", "states", "local", "reverse", "errors", *STEPS),
}
"""Kernels of each direction, in order; ``fused`` is another forward."""


def default_tiles(problem: Problem, direction: str, profile: Profile) -> DeltaTiles:
    """Preferred tiles, made smaller until every stage fits the device."""
    if direction == "forward" and fuses(problem, profile):
        direction = "fused"
    tiles = on_chip(_preferred_tiles(problem, direction, profile), profile)
    tiles = _shrunk(problem, tiles, profile)
    if direction != "backward":
        return tiles
    keys, values = power_of_two(problem.K), power_of_two(problem.V)
    # A warp, with a channel a thread: sums over channels then need not leave it.
    threaded = Tile(min(keys, profile.warp_width), values, 1, 1)
    own = dict.fromkeys(THREADED, threaded)
    if profile.arch == "sm90" and problem.itemsize == 2:
        # B2 T8192 H16 K = V = 128 on an H200: 304 us in place of 419, and 189 in place of 205.
        own["within"] = replace(threaded, BK=min(keys, 2 * profile.warp_width))
        own["errors"] = replace(tiles.stages["errors"], BV=min(values, 128))
    return DeltaTiles(tiles.C, {**tiles.stages, **own})


def tiles_in_stages(problem: Problem, profile: Profile, most: int) -> DeltaTiles:
    """Tiles of a forward pass that leaves the states before chunks of ``most`` tokens, or fewer."""
    preferred = on_chip(_preferred_tiles(problem, "forward", profile), profile)
    tiles = replace(preferred, C=min(preferred.C, most))
    return _shrunk(problem, tiles, profile)


def plan(
    problem: Problem, direction: str, profile: Profile, tiles: DeltaTiles | None = None
) -> DeltaPlan:
    """Plan the launches of ``"forward"`` or ``"backward"``.

    Args:
        problem: sizes.
        direction: which of the two.
        profile: the device.
        tiles: from a table; the defaults if None.

    Returns:
        the plan; stages over chunks have the grid of a dense batch, packed sequences take the
        number of their chunks.
    """
    tiles = tiles or default_tiles(problem, direction, profile)
    heads = problem.sequences * problem.heads
    blocks = problem.chunks(tiles.C) * problem.heads
    launches = {}
    for stage, preferred in tiles.stages.items():
        tile = preferred if stage in THREADED else held(preferred, problem, profile)
        columns = -(-problem.V // tile.BV)
        grid = heads * columns if stage in OVER_TIME else blocks
        if stage == "outputs":
            grid *= columns
        if stage in STEPS:
            grid *= -(-problem.K // tile.BK)
        if stage == "within":
            grid *= SEGMENTS
        constants = {"BK": tile.BK, "BV": tile.BV, "C": tiles.C}
        if stage == "prepare":
            constants["FLAT"] = not profile.batches
        shared = _memory(problem, stage, tile, tiles.C)
        # Widened for the compiler it takes 192 registers, and a multiprocessor has room for one
        # program. With 128 a thread spills, two programs wait for memory in turn, and it takes
        # 0.91 ms in place of 1.24 on an H200 (B2 T8192 H16 K = V = 128).
        shares = stage == "across" and tile.BK > preferred.BK
        registers = 128 if shares else None
        launches[stage] = Launch(stage, grid, constants, tile.warps, tile.stages, shared, registers)
    if direction == "backward":
        size = problem.tokens * problem.heads
        launches["beta"] = Launch("beta", -(-size // 1024), {"BLOCK": 1024}, 4, 1, 0)
    return DeltaPlan(tiles.C, {n: startable(x, profile) for n, x in launches.items()})


def _preferred_tiles(problem: Problem, direction: str, profile: Profile) -> DeltaTiles:
    scalar = delta_plan.preferred_tiles(problem, direction)
    keys, values = power_of_two(problem.K), power_of_two(problem.V)
    # Gradients of more channels at once do not fit into registers.
    inner = Tile(min(keys, 32), min(values, 64), 4, 1)
    own = {
        "prepare": Tile(min(keys, profile.depth), min(values, 64), 4, 1),
        "outputs": Tile(min(keys, 64), min(values, 128), 4, 1),
        "local": inner,
        # Not cut in channels, hence not given more warps: 0.34 ms of 8 on an H200, 0.21 of 4.
        "errors": replace(inner, BK=keys),
        "across": inner,
    }
    stages = {
        stage: own.get(stage) or scalar.stages[stage]
        for stage in STAGES[direction]
        if stage not in THREADED
    }
    return DeltaTiles(scalar.C, stages)


def _shrunk(problem: Problem, tiles: DeltaTiles, profile: Profile) -> DeltaTiles:
    shared = profile.shared_memory
    return shrunk(tiles, lambda found: _most(problem, found) <= shared, profile.dot_minimum)


def _most(problem: Problem, tiles: DeltaTiles) -> int:
    return max(_memory(problem, stage, tile, tiles.C) for stage, tile in tiles.stages.items())


def _memory(problem: Problem, stage: str, tile: Tile, size: int) -> int:
    """Bytes of the operands of a program that lie in shared memory at once."""
    if stage in ("states", "reverse"):
        return delta_plan.memory(problem, stage, tile, size)
    keys, values = size * tile.BK, size * tile.BV
    state, square = tile.BK * tile.BV, size * size
    elements = {
        "prepare": 2 * keys + values + square,
        "fused": tile.stages * (3 * keys + values + square) + state,
        "outputs": keys + values + state + square,
        "local": values + square,
        "errors": 3 * values + 2 * square,
        "across": 2 * keys + 3 * values + 2 * state + 2 * square,
    }.get(stage, 0)
    # The triangular system is solved in float32, in two factors at a time.
    exact = 8 * square if stage == "prepare" else 0
    return elements * problem.itemsize + exact
