"""Launch plans of the delta family: tiles and grids from shapes and a profile alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from fla_triton.plan import Launch, Problem, Tile, held, power_of_two, startable
from fla_triton.profiles import Profile

STAGES = {
    "forward": ("prepare", "states", "outputs"),
    "fused": ("prepare", "fused"),
    "backward": ("prepare", "states", "local", "reverse", "errors", "gradients"),
}
"""Kernels of each direction, in order; ``fused`` is another forward."""

OVER_TIME = ("states", "reverse", "fused")
"""Stages with one program for each sequence, head and tile of V."""


@dataclass(frozen=True, slots=True)
class DeltaTiles:
    """Tiles of one direction; those of ``errors``, ``outputs`` and ``local`` need not hold K whole.

    Attributes:
        C: tokens of a chunk.
        stages: a tile for each kernel.
    """

    C: int
    stages: Mapping[str, Tile]


@dataclass(frozen=True, slots=True)
class DeltaPlan:
    """Launches of one direction by stage.

    Attributes:
        C: tokens of a chunk.
        launches: by stage.
        every: of how many chunks one keeps the state before it.
    """

    C: int
    launches: Mapping[str, Launch] = field(default_factory=dict)
    every: int = 1

    @property
    def fused(self) -> bool:
        """Whether outputs come from the pass over time itself."""
        return "fused" in self.launches


def default_tiles(problem: Problem, direction: str, profile: Profile) -> DeltaTiles:
    """Preferred tiles, made smaller until every stage fits the device."""
    if direction == "forward" and fuses(problem, profile):
        tiles = on_chip(preferred_tiles(problem, "fused"), profile)
        for _ in range(2):
            if _fits(problem, tiles, profile):
                return tiles
            tiles = smaller(tiles, profile.dot_minimum)
    tiles = on_chip(preferred_tiles(problem, direction), profile)
    return shrunk(tiles, lambda found: _fits(problem, found, profile), profile.dot_minimum)


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
    every = every_state(profile) if direction == "backward" else 1
    launches = {}
    for stage, preferred in tiles.stages.items():
        tile = held(preferred, problem, profile)
        if stage == "gradients" and profile.matrix[0][0] >= 128:
            # Accumulators of 64 columns need 544 of the 512 columns of sm100's tensor memory.
            tile = replace(tile, BV=min(tile.BV, 32))
        columns = -(-problem.V // tile.BV)
        grid = heads * columns if stage in OVER_TIME else blocks
        constants = {"BK": tile.BK, "BV": tile.BV, "C": tiles.C}
        if stage == "outputs":
            constants = {"BK": tile.BK, "BV": tile.BV, "BT": tiles.C, "R": 1}
            grid *= columns
        if stage == "gradients":
            grid = problem.chunks(every * tiles.C) * problem.heads
        if stage == "prepare":
            constants["FLAT"] = not profile.batches
        shared = memory(problem, stage, tile, tiles.C)
        launches[stage] = Launch(stage, grid, constants, tile.warps, tile.stages, shared)
    launches = {n: startable(x, profile) for n, x in launches.items()}
    return DeltaPlan(tiles.C, launches, every)


def every_state(profile: Profile) -> int:
    """Of how many chunks a backward pass keeps the state before one, to form the others from it.

    That takes registers, which chips have to spare that multiply factors out of shared memory.
    """
    return 2 if profile.matrix[0][0] >= 64 else 1


def decode_plan(problem: Problem, profile: Profile, v_first: bool = False) -> Launch:
    """Plan the walk token by token.

    Sums over K wait for all warps of a program, and one warp holds 16 columns. Where the chip is
    full all the same, 64 columns make whole lines of a state's rows: 74 against 90 us of one token
    of B64 H32 K = V = 128 in place on an H200. The rows of a state [V, K] are whole in any case.
    """
    keys, heads = power_of_two(problem.K), problem.sequences * problem.heads
    columns = 16
    if not v_first and heads * -(-problem.V // 64) >= 4 * profile.multiprocessors:
        columns = max(columns, min(power_of_two(problem.V), 64))
    warps = max(1, keys * columns // 2048)
    grid = heads * -(-problem.V // columns)
    return startable(Launch("decode", grid, {"BK": keys, "BV": columns}, warps, 1, 0), profile)


def fuses(problem: Problem, profile: Profile) -> bool:
    """Whether one pass over time is likely to be the faster.

    It moves half the bytes, but each of its steps takes longer: for few heads, whose programs leave
    most of the chip idle in either form, the outputs of all chunks at once are nearly free.
    """
    heads = problem.sequences * problem.heads
    programs = heads * -(-problem.V // 64)
    return problem.itemsize == 2 and problem.K <= 128 and 4 * programs >= profile.multiprocessors


def preferred_tiles(problem: Problem, direction: str) -> DeltaTiles:
    """Tiles for a device that they fit."""
    keys, values = power_of_two(problem.K), power_of_two(problem.V)
    wide = problem.itemsize > 2
    warps = 8 if keys > 128 or (wide and keys > 64) else 4
    # No 32 columns over time: beside 128 rows Triton 3.6.0 miscompiles them on sm90.
    columns = 16 if values == 16 or wide else 64
    over_time = Tile(keys, columns, warps, 1 if wide else 3)
    inner = Tile(keys, min(values, 64), warps, 1)
    outputs = replace(inner, BV=min(values, 64 if wide or keys > 128 else 128))
    special = {
        "states": over_time,
        "reverse": replace(over_time, stages=min(over_time.stages, 2)),
        "outputs": outputs,
        "fused": over_time,
        # Three accumulators of C rows and K columns and two of C by C.
        "gradients": replace(inner, warps=8 if keys > 64 else 4),
    }
    size = 64 if keys <= 128 and not wide else 32
    return DeltaTiles(size, {stage: special.get(stage, inner) for stage in STAGES[direction]})


def on_chip(tiles: DeltaTiles, profile: Profile) -> DeltaTiles:
    """The tiles with chunks and warps that hold them on this chip."""
    if profile.warps == 1 and profile.block >= tiles.C:
        return tiles
    stages = {
        stage: replace(tile, warps=min(tile.warps * profile.warps, 8))
        for stage, tile in tiles.stages.items()
    }
    if gradients := stages.get("gradients"):
        stages["gradients"] = replace(gradients, BV=min(gradients.BV, profile.depth))
    # Of 128 channels of float32 at once errors spill 11 KB a thread on sm80, of 64 392 bytes; of
    # 256 outputs spill 9 KB.
    for stage, most in (("errors", 64), ("outputs", 128), ("local", 128)):
        tile = stages.get(stage)
        if tile is not None and most < tile.BK:
            stages[stage] = replace(tile, BK=64)
    return DeltaTiles(min(tiles.C, profile.block), stages)


def _fits(problem: Problem, tiles: DeltaTiles, profile: Profile) -> bool:
    needed = (memory(problem, stage, tile, tiles.C) for stage, tile in tiles.stages.items())
    return max(needed) <= profile.operands


def shrunk(tiles: DeltaTiles, fit: Callable[[DeltaTiles], bool], least: int) -> DeltaTiles:
    """The tiles, made smaller until they fit, or as small as they get."""
    while not fit(tiles):
        less = smaller(tiles, least)
        if less == tiles:
            break
        tiles = less
    return tiles


def smaller(tiles: DeltaTiles, least: int) -> DeltaTiles:
    """One step down: fewer stages of the pipeline, then narrower tiles, then shorter chunks."""
    if any(tile.stages > 1 for tile in tiles.stages.values()):
        changed = {n: replace(t, stages=max(1, t.stages - 1)) for n, t in tiles.stages.items()}
        return replace(tiles, stages=changed)
    if any(least < tile.BV for tile in tiles.stages.values()):
        changed = {n: replace(t, BV=_narrower(n, t.BV, least)) for n, t in tiles.stages.items()}
        return replace(tiles, stages=changed)
    return replace(tiles, C=max(least, tiles.C // 2))


def _narrower(stage: str, columns: int, least: int) -> int:
    if stage in OVER_TIME:
        return least
    return max(least, columns // 2)


def memory(problem: Problem, stage: str, tile: Tile, size: int) -> int:
    """Bytes of the operands of a program that lie in shared memory at once."""
    keys, values = size * tile.BK, size * tile.BV
    state, scores = tile.BK * tile.BV, size * size
    elements = {
        "prepare": keys + values + scores,
        "states": tile.stages * (2 * keys + values) + state + values,
        "outputs": 2 * keys + values + state,
        "fused": tile.stages * (2 * keys + values + 2 * scores) + state + 2 * values,
        "local": 2 * keys + values + scores,
        "reverse": tile.stages * (3 * keys + 2 * values) + state + 2 * values,
        "errors": 2 * keys + 3 * values + 2 * scores,
        "gradients": 3 * keys + 4 * values + 2 * state + 2 * scores,
    }[stage]
    # The triangular system is solved in float32, in two factors at a time.
    exact = 8 * scores if stage == "prepare" else 0
    return elements * problem.itemsize + exact
