"""What compiled code takes of a chip, read from the code itself."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compile_only.targets import FEATURES, MATRIX

NARROW_DOT = re.compile(r"(?:tt\.dot|_dot|gen5_mma) .*<[\dx]+x(?:bf16|f16)[,>]")
"""A product of 16-bit matrices, in Triton's own form or in that of one vendor."""

NOTHING = re.compile(r"= fsub (?:[a-z]+ )*(?:<\d+ x )?(?:float|double)>? (%[\w.]+), \1(?![\w.])")
"""A number less itself: left of ``x - x.to(tl.bfloat16)`` where a compiler drops roundings."""

SPIRV_MAGIC = bytes.fromhex("03022307")


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes.

    Attributes:
        shared: bytes of shared memory a program.
        registers: 32-bit registers a thread, those of matrix accumulators included; 0 where the
            driver allocates them.
        stack: bytes of memory a thread into which registers are spilled.
        narrow_dots: products of 16-bit matrices in its source.
        matrix: how often each instruction that multiplies matrices occurs.
        used: of ``targets.FEATURES``, those that Intel's code uses.
        nothings: differences of a number and itself, where a remainder should be.
    """

    shared: int
    registers: int
    stack: int
    narrow_dots: int
    matrix: dict[str, int]
    used: frozenset[str] = frozenset()
    nothings: int = 0


def resources(compiled: Any) -> Resources:
    """Read a ``triton.compiler.CompiledKernel``."""
    # Of Intel's code the last form that can be read; all compilers have it on their way.
    text = next((name for name in ("ptx", "amdgcn") if name in compiled.asm), "llir")
    code = compiled.asm[text]
    registers, stack = {"ptx": _of_cubin, "amdgcn": _of_amdgcn, "llir": _of_spirv}[text](compiled)
    found = {name: code.count(name) for name in MATRIX[text]}
    signs = FEATURES if text == "llir" else {}
    return Resources(
        shared=compiled.metadata.shared,
        registers=registers,
        stack=stack,
        narrow_dots=len(
            NARROW_DOT.findall(compiled.asm["ttir" if _portable(compiled) else "ttgir"])
        ),
        matrix={name: count for name, count in found.items() if count},
        used=frozenset(name for name, sign in signs.items() if re.search(sign, code)),
        nothings=len(NOTHING.findall(compiled.asm["llir"])),
    )


def _portable(compiled: Any) -> bool:
    return "ttir" in compiled.asm


def _of_cubin(compiled: Any) -> tuple[int, int]:
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(compiled.asm["cubin"])
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(file)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return _number(r"REG:(\d+)", text), _number(r"STACK:(\d+)", text)


def _of_amdgcn(compiled: Any) -> tuple[int, int]:
    # ``vgpr_count`` counts accumulation registers too where both are one file.
    code = compiled.asm["amdgcn"]
    return (
        _number(r"\.vgpr_count:\s+(\d+)", code),
        _number(r"\.private_segment_fixed_size:\s+(\d+)", code),
    )


def _of_spirv(compiled: Any) -> tuple[int, int]:
    # The driver allocates registers; SPIR-V has as many as it likes.
    if compiled.asm["spv"][:4] != SPIRV_MAGIC:
        raise ValueError(f"{compiled.metadata.name}: no SPIR-V came out")
    return 0, 0


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"no {pattern} in what the compiler says:\n{text[-2000:]}")
    return int(found[1])
