"""Launch plans: grid, tiles, warps and stages of each stage, from shapes and a profile alone.

Pure functions, so that every plan over a table of sizes can be looked at where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fla_core.errors import UnsupportedError
from fla_triton.profiles import Profile

DECODE_TOKENS = 16
"""Longest sequence that is walked token by token: one token costs a pass over the state."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What a plan depends on.

    Attributes:
        sequences: N.
        tokens: tokens of all sequences.
        longest: tokens of the longest sequence.
        heads, K, V: H and the sizes of keys and values.
        itemsize: bytes of an element of q.
        packed: sequences lie in one row (varlen).
        gated: every token has a gate, whose gradient a backward pass may have to form.
    """

    sequences: int
    tokens: int
    longest: int
    heads: int
    K: int
    V: int
    itemsize: int
    packed: bool = False
    gated: bool = False

    def chunks(self, size: int) -> int:
        """Upper bound of the chunks of all sequences; exact for a dense batch."""
        if self.packed:
            return self.tokens // size + self.sequences
        return self.sequences * -(-self.longest // size)


@dataclass(frozen=True, slots=True)
class Tile:
    """Tile of one stage: rows of K and columns of V a program holds, warps, pipeline stages."""

    BK: int
    BV: int
    warps: int = 4
    stages: int = 2


def held(tile: Tile, problem: Problem, profile: Profile) -> Tile:
    """The tile, widened to what the chip's compiler gets right."""
    if problem.itemsize > 2:
        return tile
    keys, values = max(tile.BK, profile.columns), max(tile.BV, profile.columns)
    # A tile that was cut for its registers needs more warps to hold what it was spared.
    cut = min(problem.K, keys) > tile.BK
    return replace(tile, BK=keys, BV=values, warps=max(tile.warps, 8) if cut else tile.warps)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of one direction.

    Attributes:
        BT: tokens of a block.
        R: blocks of a chunk, at whose start one state is kept; 1 or 2.
        states: tile of the pass over time.
        chunk: tile of the pass over all chunks at once.
    """

    BT: int
    R: int
    states: Tile
    chunk: Tile

    @property
    def chunk_size(self) -> int:
        """Tokens of a chunk."""
        return self.BT * self.R


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch: its name, grid on axis 0, and what the compiler is told.

    ``registers`` of a thread are told where warps have roles and share them out themselves, or
    where fewer of them let more programs share a multiprocessor.
    """

    stage: str
    grid: int
    constants: Mapping[str, int]
    warps: int
    stages: int
    shared: int
    registers: int | None = None


def startable(planned: Launch, profile: Profile) -> Launch:
    """The launch, if the chip can start it at once.

    Raises:
        UnsupportedError: it has more programs or threads than a launch may have.
    """
    threads = planned.grid * planned.warps * profile.warp_width
    if planned.grid > profile.grid_limit or threads >= profile.thread_limit:
        limits = f"{profile.grid_limit} programs and fewer than {profile.thread_limit} threads"
        raise UnsupportedError(
            f"{planned.stage} on {profile.arch}",
            f"a launch of {planned.grid} programs with {threads} threads",
            f"a launch has up to {limits}: split the batch, or its heads, into several calls",
        )
    return planned


@dataclass(frozen=True, slots=True)
class Plan:
    """Launches of one direction, in order; ``totals`` and ``chain`` only where time is split."""

    tiles: Tiles
    segments: int
    span: int
    launches: Mapping[str, Launch] = field(default_factory=dict)


def power_of_two(size: int, low: int = 16) -> int:
    """The smallest power of two that is at least ``size`` and ``low``."""
    return max(low, 1 << (size - 1).bit_length())


def default_tiles(problem: Problem, direction: str, profile: Profile) -> Tiles:
    """Tiles where no table knows better, halved until they fit the device."""
    tiles = _on(_preferred_tiles(problem, direction), profile)
    while tiles.states.stages > 1 and _states_memory(problem, tiles) > profile.shared_memory:
        tiles = replace(tiles, states=replace(tiles.states, stages=tiles.states.stages - 1))
    while _chunk_memory(problem, tiles, direction) > profile.operands:
        chunk = tiles.chunk
        if profile.dot_minimum < chunk.BV:
            tiles = replace(tiles, chunk=replace(chunk, BV=chunk.BV // 2))
        elif profile.dot_minimum < tiles.BT:
            tiles = replace(tiles, BT=tiles.BT // 2)
        else:
            break
    return tiles


def _on(tiles: Tiles, profile: Profile) -> Tiles:
    """The tiles with blocks and warps that hold them on this chip."""
    state, chunk = tiles.states, tiles.chunk
    if 2 * profile.depth < state.BK:
        # Of 64 rows and three chunks at once gfx1100 spills 372 bytes a thread.
        state = replace(state, BK=2 * profile.depth, stages=min(state.stages, 2))
    return replace(
        tiles,
        BT=min(tiles.BT, profile.block),
        R=tiles.R if profile.pairs else 1,
        states=replace(state, warps=min(state.warps * profile.warps, 8)),
        chunk=replace(chunk, warps=min(chunk.warps * profile.warps, 8)),
    )


def _preferred_tiles(problem: Problem, direction: str) -> Tiles:
    keys, values = power_of_two(problem.K), power_of_two(problem.V)
    if problem.itemsize > 2:
        state = Tile(min(keys, 32), min(values, 32), stages=2)
        if keys > 128 and direction == "forward":
            # 64 channels at once: 6.5 ms against 107 with all 256, of which sm90 spills 11 KB a
            # thread (one H200, B1 T8192 H16 K = V = 256).
            return Tiles(32, 1, state, Tile(64, min(values, 32), 8, 1))
        return Tiles(32, 2, state, Tile(keys, min(values, 32), 8 if keys > 64 else 4, 1))
    state = Tile(min(keys, 64), min(values, 64), stages=3)
    if keys > 128:
        return Tiles(32, 1, state, Tile(keys, min(values, 32), 8, 1))
    # Two blocks a chunk halve the memory of states. Where gates have gradients they cost too many
    # registers: 0.78 ms against 0.67 on an H200 (B2 T8192 H16 K = V = 128).
    blocks = 1 if direction == "backward" and problem.gated else 2
    return Tiles(64, blocks, state, Tile(keys, min(values, 128), 4, 1))


def split_of_time(problem: Problem, tiles: Tiles, profile: Profile) -> tuple[int, int]:
    """How many segments each sequence is cut into, and how many chunks each holds.

    A split costs a second pass over keys and values, so it must at least fill three times as many
    multiprocessors; a segment of fewer than four chunks would spend its time starting.
    """
    chunks = -(-problem.longest // tiles.chunk_size)
    programs = problem.sequences * problem.heads * _state_tiles(problem, tiles)
    segments = min(2 * profile.multiprocessors // programs, chunks // 4) if programs else 0
    if segments < 3:
        return 1, chunks
    span = -(-chunks // segments)
    return -(-chunks // span), span


def joining(states: Launch, segments: int, problem: Problem) -> dict[str, Launch]:
    """What tells each segment the state it starts from; nothing where time is not cut.

    Args:
        states: the pass over time, over all segments.
        segments: of each sequence.
        problem: sizes.
    """
    if segments == 1:
        return {}
    blocks = -(-problem.K * problem.V // 1024)
    heads = problem.sequences * problem.heads
    return {
        "totals": replace(states, stage="totals", grid=states.grid // segments * (segments - 1)),
        "chain": Launch("chain", heads * blocks, {"BLOCK": 1024}, 4, 1, 0),
    }


def plan(problem: Problem, direction: str, profile: Profile, tiles: Tiles | None = None) -> Plan:
    """Plan the launches of ``"forward"`` or ``"backward"``.

    Args:
        problem: sizes.
        direction: which of the two.
        profile: the device.
        tiles: from a table; the defaults if None.

    Returns:
        the plan; its ``launches`` have the grid of a dense batch. Packed sequences know the
        number of their chunks only when the table of chunks is there, and take its length.
    """
    tiles = tiles or default_tiles(problem, direction, profile)
    segments, span = split_of_time(problem, tiles, profile)
    heads = problem.sequences * problem.heads
    state, chunk = (held(tile, problem, profile) for tile in (tiles.states, tiles.chunk))
    tiles = replace(tiles, states=state, chunk=chunk)
    inner = heads * _state_tiles(problem, tiles)
    constants = {"BK": state.BK, "BV": state.BV, "C": tiles.chunk_size}
    shared = _states_memory(problem, tiles)
    launches = {
        "states": Launch("states", inner * segments, constants, state.warps, state.stages, shared)
    }
    launches |= joining(launches["states"], segments, problem)
    blocks = problem.chunks(tiles.chunk_size) * problem.heads * tiles.R
    constants = {"BK": chunk.BK, "BV": chunk.BV, "BT": tiles.BT, "R": tiles.R}
    if direction == "forward":
        blocks *= -(-problem.V // chunk.BV)
    shared = _chunk_memory(problem, tiles, direction)
    launches["chunks"] = Launch("chunks", blocks, constants, chunk.warps, chunk.stages, shared)
    return Plan(tiles, segments, span, {n: startable(x, profile) for n, x in launches.items()})


def decode_plan(problem: Problem, profile: Profile) -> Launch:
    """Plan the walk token by token: narrow tiles, since there is one program a tile and head."""
    keys = power_of_two(problem.K)
    heads = problem.sequences * problem.heads
    columns = min(power_of_two(problem.V), 64)
    if heads * -(-problem.V // columns) < 4 * profile.multiprocessors:
        columns = min(columns, 32)
    if heads * -(-problem.V // columns) < 2 * profile.multiprocessors:
        columns = min(columns, 16)
    grid = heads * -(-problem.V // columns)
    return startable(Launch("decode", grid, {"BK": keys, "BV": columns}, 4, 1, 0), profile)


def _state_tiles(problem: Problem, tiles: Tiles) -> int:
    return -(-problem.K // tiles.states.BK) * -(-problem.V // tiles.states.BV)


def _states_memory(problem: Problem, tiles: Tiles) -> int:
    """Bytes of the chunks that the pass over time has loaded ahead."""
    state = tiles.states
    return (state.BK + state.BV) * tiles.chunk_size * problem.itemsize * state.stages


def _chunk_memory(problem: Problem, tiles: Tiles, direction: str) -> int:
    """Bytes of the operands of a program that lie in shared memory at once."""
    keys, values, rows = tiles.chunk.BK, tiles.chunk.BV, tiles.BT
    if direction == "forward":
        elements = rows * (2 * keys + values) + keys * values
    else:
        elements = 2 * rows * (keys + values) + 2 * keys * values + rows * rows
    return elements * problem.itemsize
