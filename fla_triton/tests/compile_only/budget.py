"""What a kernel may take of a chip. What is let pass all the same is data, each with its reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from compile_only.driver import Compiled
from compile_only.targets import LANES, Target

FILE = Path(__file__).with_name("budgets.json")
MAX_THREADS = 1024


def without_matrix_units(arch: str) -> bool:
    """Whether 16-bit products of a chip are let pass that use no matrix units."""
    entries = json.loads(FILE.read_text(encoding="utf-8"))["without_matrix_units"]
    return any(fnmatchcase(arch, entry["arch"]) for entry in entries)


def allowed_stack(kernel: str, dtype: str, arch: str, constants: dict[str, object]) -> int:
    """Bytes a thread that a kernel may spill: those of the first entry that fits, else none.

    An entry of ``spills`` names ``kernel``, ``arch`` and ``dtype`` as patterns, ``bytes``, ``why``,
    and, where it holds for some sizes alone, ``constants`` and the smallest value of each. Those of
    ``float32`` come first and are what was seen, up to the next 64 bytes: ``bytes`` of each kernel,
    on chips of a pattern and from ``K`` channels on.
    """
    data = json.loads(FILE.read_text(encoding="utf-8"))
    for entry in data["float32"] if dtype == "fp32" else ():
        wide = constants.get("K", 0) >= entry["K"]
        if wide and fnmatchcase(arch, entry["arch"]) and kernel in entry["bytes"]:
            return int(entry["bytes"][kernel])
    for entry in data["spills"]:
        if (
            fnmatchcase(kernel, entry["kernel"])
            and fnmatchcase(arch, entry["arch"])
            and fnmatchcase(dtype, entry["dtype"])
            and all(constants.get(name, 0) >= low for name, low in entry["constants"].items())
        ):
            return int(entry["bytes"])
    return 0


def lane_registers(arch: str) -> int:
    """Registers that a lane can have; 0 where the driver allocates them, and none are counted."""
    return next((most for pattern, most in LANES if fnmatchcase(arch, pattern)), 0)


def faults(compiled: Compiled, chip: Target) -> Iterator[str]:
    """What is wrong with a kernel on a chip."""
    takes, profile = compiled.resources, chip.profile
    shape = {n: v for n, v in compiled.constants.items() if n in ("K", "V", "BK", "BV", "BT", "C")}
    what = f"{compiled.kernel} {compiled.dtype} {shape} {compiled.warps} warps"
    if takes.shared > profile.shared_memory:
        yield f"{what}: {takes.shared} bytes of shared memory, {profile.shared_memory} are there"
    if compiled.warps * profile.warp_width > MAX_THREADS:
        yield f"{what}: {compiled.warps * profile.warp_width} threads"
    if takes.registers > (most := lane_registers(profile.arch)):
        yield f"{what}: {takes.registers} registers a lane, {most} are there"
    held = takes.registers * compiled.warps * profile.warp_width
    if held > profile.registers:
        yield f"{what}: {held} registers a program, {profile.registers} are there"
    budget = allowed_stack(compiled.kernel, compiled.dtype, profile.arch, compiled.constants)
    if takes.stack > budget:
        yield f"{what}: spills {takes.stack} bytes a thread, {budget} are allowed"
    if takes.narrow_dots and not takes.matrix and not without_matrix_units(profile.arch):
        yield f"{what}: {takes.narrow_dots} products of 16-bit matrices without matrix units"
    if takes.nothings:
        yield f"{what}: {takes.nothings} remainders of roundings that the compiler took for zero"
    for name in sorted(takes.used & chip.absent):
        yield f"{what}: uses {name}, which the chip does not have"
