"""Kernels that a chip cannot run as they should be run: the judges must say so."""

# Triton evaluates annotations as part of a kernel, so kernels carry none.

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
import triton
import triton.language as tl

from compile_only.budget import faults
from compile_only.driver import Compiled, pretending
from compile_only.targets import Target
from fla_triton.kernels import common


@triton.jit
def long_product(x, y, out, N: tl.constexpr, LONG: tl.constexpr):
    """A product whose operands alone overflow the shared memory of every chip."""
    rows = tl.arange(0, N)
    places = rows[:, None] * LONG + tl.arange(0, LONG)[None, :]
    product = tl.dot(tl.load(x + places), tl.trans(tl.load(y + places)))
    tl.store(out + rows[:, None] * N + rows[None, :], product)


@triton.jit
def hoarder(x, out, N: tl.constexpr):
    """A tile that no thread's registers hold, alive across a loop that needs all of it."""
    rows = tl.arange(0, N)
    places = rows[:, None] * N + rows[None, :]
    kept = tl.load(x + places).to(tl.float32)
    for _ in range(8):
        kept = kept * tl.sum(kept, 0)[None, :] + tl.sum(kept, 1)[:, None]
    tl.store(out + places, kept)


def overflows(chip: Target) -> list[str]:
    """What the judges say of a kernel that needs more shared memory than there is."""
    size, long = 64, 2048
    operand, result = torch.empty(size * long, dtype=torch.bfloat16), torch.empty(size * size)
    found: list[Compiled] = []
    wrong = []
    with pretending(chip, found.append):
        try:
            long_product[(1,)](operand, operand, result, N=size, LONG=long)
        except triton.runtime.errors.OutOfResources as error:
            wrong.append(f"{type(error).__name__}: {error}")
    return wrong + [fault for one in found for fault in faults(one, chip)]


def spills(chip: Target) -> list[str]:
    """What the judges say of a kernel that needs more registers than a lane has."""
    return list(faults(_hoarded(chip), chip))


def crowds(chip: Target) -> list[str]:
    """What the judges say of a kernel that needs more registers than a multiprocessor has.

    Compilers keep to what a chip has, so the judges are told of a chip that has less.
    """
    kernel = _hoarded(chip)
    few = 64 * kernel.warps * chip.profile.warp_width
    return list(faults(kernel, replace(chip, profile=replace(chip.profile, registers=few))))


@cache
def _hoarded(chip: Target) -> Compiled:
    # Threads of wide warps have twice the registers: 256 or 512 elements for each.
    size = 4 * chip.profile.warp_width
    tile = torch.empty(size * size, dtype=torch.bfloat16)
    found: list[Compiled] = []
    with pretending(chip, found.append):
        hoarder[(1,)](tile, tile, N=size, num_warps=2)
    return found[0]


CONTROLS = {"overflow": overflows, "spill": spills, "crowd": crowds}


def spoil_masks() -> None:
    """Let kernels read one token too many of each sequence: no result may then be right."""
    spoiled = common.load_rows.src.replace("live[:, None]", "(rows >= 0)[:, None]")
    if spoiled == common.load_rows.src:
        raise LookupError("load_rows has no mask of live rows to spoil")
    common.load_rows._unsafe_update_src(spoiled)
