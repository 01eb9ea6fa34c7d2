"""Launch plans of linear attention whose channels decay separately."""

from __future__ import annotations

from dataclasses import replace

from fla_triton.plan import (
    Launch,
    Plan,
    Problem,
    Tile,
    Tiles,
    held,
    joining,
    power_of_two,
    split_of_time,
    startable,
)
from fla_triton.profiles import Profile

STAGES = {
    "forward": ("prepare", "outputs"),
    "backward": ("prepare", "values", "pulls", "gradients"),
}
"""Kernels with one program for each chunk and head, in order; the pass over time lies between."""


def default_tiles(problem: Problem, direction: str, profile: Profile) -> Tiles:
    """Tiles where no table knows better, made smaller until every stage fits the device."""
    tiles = _preferred_tiles(problem, profile)
    while _most(problem, tiles, direction) > profile.operands:
        less = _smaller(tiles, profile.dot_minimum)
        if less == tiles:
            break
        tiles = less
    return tiles


def plan(problem: Problem, direction: str, profile: Profile, tiles: Tiles | None = None) -> Plan:
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
    size, state = tiles.chunk_size, held(tiles.states, problem, profile)
    segments, span = split_of_time(problem, tiles, profile)
    heads = problem.sequences * problem.heads
    inner = heads * -(-problem.K // state.BK) * -(-problem.V // state.BV)
    constants = {"BK": state.BK, "BV": state.BV, "C": size}
    shared = _memory(problem, "states", state, size)
    launches = {
        "states": Launch("states", inner * segments, constants, state.warps, state.stages, shared)
    }
    launches |= joining(launches["states"], segments, problem)
    for stage in STAGES[direction]:
        tile = held(stage_tile(tiles, stage), problem, profile)
        if profile.warps > 1 and stage in ("prepare", "gradients"):
            # Operands in registers: of 64 channels sm80 spills 1016 bytes a thread, of 32 none.
            most = min(profile.depth, 32 if stage == "gradients" else tile.BK)
            tile = replace(tile, BK=min(tile.BK, most), BV=min(tile.BV, profile.depth))
        grid = problem.chunks(size) * problem.heads
        constants = {"C": size}
        if stage != "pulls":
            constants["BK"] = tile.BK
        if stage == "prepare":
            constants["FLAT"] = not profile.batches
        else:
            constants["BV"] = tile.BV
        if stage == "gradients":
            constants["LEVELS"] = size.bit_length() - 1
            grid *= -(-problem.K // tile.BK)
        if stage in ("outputs", "values"):
            grid *= -(-problem.V // tile.BV)
        shared = _memory(problem, stage, tile, size)
        launches[stage] = Launch(stage, grid, constants, tile.warps, tile.stages, shared)
    return Plan(tiles, segments, span, {n: startable(x, profile) for n, x in launches.items()})


def stage_tile(tiles: Tiles, stage: str) -> Tile:
    """Tile of one stage over chunks.

    ``tiles.chunk`` is that of plain products. Gradients, whose products follow one another, would
    form each of them twice with more warps than one block of rows fills, and take fewer columns.
    """
    chunk = tiles.chunk
    if stage == "gradients":
        return replace(chunk, BV=min(chunk.BV, 64))
    return chunk


def _preferred_tiles(problem: Problem, profile: Profile) -> Tiles:
    keys, values = power_of_two(problem.K), power_of_two(problem.V)
    warps = min(4 * profile.warps, 8)
    if problem.itemsize > 2:
        state = Tile(min(keys, 32), min(values, 32), warps, 2)
        return Tiles(32, 1, state, Tile(min(keys, 32), min(values, 32), warps, 1))
    state = Tile(min(keys, 64), min(values, 64), warps, 3)
    chunk = Tile(min(keys, 64), min(values, 128), warps, 1)
    return Tiles(min(64, profile.block), 1, state, chunk)


def _smaller(tiles: Tiles, least: int) -> Tiles:
    """One step down: fewer stages of the pipeline, then narrower tiles, then shorter chunks."""
    state, chunk = tiles.states, tiles.chunk
    if state.stages > 1:
        return replace(tiles, states=replace(state, stages=state.stages - 1))
    if least < max(chunk.BK, chunk.BV):
        narrow = replace(chunk, BK=max(least, chunk.BK // 2), BV=max(least, chunk.BV // 2))
        return replace(tiles, chunk=narrow)
    return replace(tiles, BT=max(least, tiles.BT // 2))


def _most(problem: Problem, tiles: Tiles, direction: str) -> int:
    over_chunks = (
        _memory(problem, stage, stage_tile(tiles, stage), tiles.chunk_size)
        for stage in STAGES[direction]
    )
    return max(_memory(problem, "states", tiles.states, tiles.chunk_size), *over_chunks)


def _memory(problem: Problem, stage: str, tile: Tile, size: int) -> int:
    """Bytes of the operands of a program that lie in shared memory at once."""
    keys, values = size * tile.BK, size * tile.BV
    state, square = tile.BK * tile.BV, size * size
    elements = {
        "states": tile.stages * (keys + values),
        "prepare": max(2 * keys, square),
        "outputs": keys + values + state + square,
        "values": keys + values + state + square,
        "pulls": 2 * values,
        "gradients": max(2 * (values + state), 3 * keys + square),
    }[stage]
    return elements * problem.itemsize
