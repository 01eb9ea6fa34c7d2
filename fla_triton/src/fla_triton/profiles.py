"""Devices as data: what a launch plan needs to know of a chip."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of chip.

    Attributes:
        arch: as probes name it, ``"sm90"``, ``"gfx942"``, ``"pvc"``.
        multiprocessors: programs that run side by side, at one a multiprocessor.
        shared_memory: bytes one program may use.
        in_registers: how many times as many bytes of operands a program holds; on AMD chips most
            lie in registers, and no kernel was seen to take half of what its operands take.
        grid_limit: largest number of programs on axis 0.
        thread_limit: more threads than a launch may have.
        dot_minimum: smallest side of a matrix product's tile.
        columns: fewest columns of a tile of 16-bit factors that the compiler gets right.
        warp_width: threads of a warp (wave, subgroup).
        registers: 32-bit registers of a multiprocessor.
        exact, fast: how the compiler is told to multiply float32 factors where torch would do so
            exactly, and where torch would round them.
        matrix: shapes (m, n, k) of its instructions that multiply 16-bit matrices.
        warps: factor on the warps of a program, where those of a warp hold less of a tile.
        block: tokens of a block whose products its registers hold.
        depth: channels or columns that a program with several accumulators multiplies at once.
        pairs: a chunk may be of two blocks; Intel's compiler cannot have products in branches.
        batches: matrices may be multiplied side by side; Intel's compiler stops where factors are
            TensorFloat32.
    """

    arch: str
    multiprocessors: int
    shared_memory: int
    grid_limit: int = 2**31 - 1
    thread_limit: int = 2**42
    dot_minimum: int = 16
    columns: int = 16
    warp_width: int = 32
    registers: int = 65536
    exact: str = "tf32x3"
    fast: str = "tf32"
    matrix: tuple[tuple[int, int, int], ...] = ((16, 8, 16),)
    warps: int = 1
    block: int = 64
    depth: int = 64
    pairs: bool = True
    batches: bool = True
    in_registers: int = 1

    @property
    def operands(self) -> int:
        """Bytes of matrix operands that a plan may give one program at once."""
        return self.in_registers * self.shared_memory


def _amd(
    arch: str,
    units: int,
    shared_memory: int,
    *,
    warp_width: int,
    registers: int,
    matrix: tuple[tuple[int, int, int], ...],
    fast: str = "ieee",
    depth: int = 64,
) -> Profile:
    """An AMD chip.

    Waves of 32 hold half of what those of 64 do, and matrix operands lie in them twice: with the
    tiles of other chips they spill kilobytes.
    """
    narrow = warp_width == 32
    return Profile(
        arch,
        multiprocessors=units,
        shared_memory=shared_memory,
        thread_limit=2**32,
        warp_width=warp_width,
        registers=registers,
        exact="ieee",
        fast=fast,
        matrix=matrix,
        warps=2 if narrow else 1,
        block=32 if narrow else 64,
        depth=depth,
        in_registers=1 if narrow else 2,
    )


def _intel(
    arch: str,
    units: int,
    shared_memory: int,
    matrix: tuple[tuple[int, int, int], ...],
    registers: int = 65536,
) -> Profile:
    """An Intel chip."""
    return Profile(
        arch,
        multiprocessors=units,
        shared_memory=shared_memory,
        registers=registers,
        matrix=matrix,
        pairs=False,
        batches=False,
    )


_MFMA = ((32, 32, 8), (16, 16, 16))
_WIDE_MFMA = ((32, 32, 16), (16, 16, 32))
_WMMA = ((16, 16, 16),)
_WIDE_WMMA = ((16, 16, 32),)
_DPAS = ((8, 16, 16),)
_NARROW_DPAS = ((8, 8, 16),)

PROFILES = {
    profile.arch: profile
    for profile in (
        Profile("sm80", multiprocessors=108, shared_memory=163 * KIB, warps=2),
        # Of 16 or 32 columns, 64 rows and 4 warps, with a left factor that another product left in
        # registers, products of Triton 3.6.0 are wrong or fault on an H200.
        Profile(
            "sm90",
            multiprocessors=132,
            shared_memory=227 * KIB,
            columns=64,
            matrix=((64, 8, 16),),
        ),
        Profile("sm100", multiprocessors=148, shared_memory=227 * KIB, matrix=((128, 16, 16),)),
        Profile("sm120", multiprocessors=170, shared_memory=99 * KIB, warps=2),
    )
}
"""NVIDIA chips, by architecture: A100, H100 and H200, B200, RTX 5090."""

AMD = {
    profile.arch: profile
    for profile in (
        _amd("gfx90a", 104, 64 * KIB, warp_width=64, registers=131072, matrix=_MFMA),
        # The only one that multiplies float32 matrices in a narrower format.
        _amd("gfx942", 304, 64 * KIB, warp_width=64, registers=131072, matrix=_MFMA, fast="tf32"),
        _amd("gfx950", 256, 160 * KIB, warp_width=64, registers=131072, matrix=_WIDE_MFMA),
        # A thread has 256 registers, beside accumulators they hold factors of one instruction.
        _amd("gfx1100", 96, 64 * KIB, warp_width=32, registers=98304, matrix=_WMMA, depth=16),
        _amd("gfx1201", 64, 64 * KIB, warp_width=32, registers=98304, matrix=_WMMA, depth=16),
        # How many units its parts have is not published; fewer only splits time less often.
        _amd("gfx1250", 128, 320 * KIB, warp_width=32, registers=131072, matrix=_WIDE_WMMA),
    )
}
"""AMD chips: MI210, MI300X, MI355X, RX 7900 XTX, RX 9070 XT, and the successor of MI355X."""

INTEL = {
    profile.arch: profile
    for profile in (
        _intel("pvc", 128, 128 * KIB, _DPAS, registers=131072),
        _intel("bmg", 20, 128 * KIB, _DPAS),
        _intel("dg2", 32, 64 * KIB, _NARROW_DPAS),
    )
}
"""Intel chips: Data Center GPU Max 1550, Arc B580, Arc A770."""

EVERY = {**PROFILES, **AMD, **INTEL}
"""Every chip, by architecture."""
