"""Chips to compile for: what the compiler is asked for, and what its output must contain."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from fla_triton.profiles import AMD, EVERY, INTEL, PROFILES, Profile

BACKENDS = {
    **dict.fromkeys(PROFILES, "cuda"),
    **dict.fromkeys(AMD, "rocm"),
    **dict.fromkeys(INTEL, "xpu"),
}
"""Which plugin serves a chip."""

MATRIX = {
    "ptx": ("wgmma.mma_async", "tcgen05.mma", "mma.sync"),
    "amdgcn": ("v_mfma_", "v_wmma_"),
    "llir": ("_matrix_mad_",),
}
"""Instructions that multiply matrices, by the text in which they stand."""

FEATURES = {"float64": r"\bdouble\b", "block reads": r"(?i)2d_?block"}
"""What some Intel chips do not have, and what code that uses it has in its text."""

LANES = (("sm*", 255), ("gfx9*", 512), ("gfx1250", 1024), ("gfx1*", 256))
"""32-bit registers that code can name in a lane, by the first pattern that fits an architecture.

AMD's count accumulators of matrices, which lie in the same file. Intel's drivers allocate.
"""

HOST = "host"
"""The CPU as an OpenCL device: Intel's code without what only its GPUs have."""

_GENERIC = {
    "vendor": "Intel(R) Corporation",
    "gpu_eu_count": 64,
    "gpu_subslice_count": 8,
    "max_work_group_size": 1024,
    "max_num_sub_groups": 64,
    "sub_group_sizes": [16, 32],
    "has_fp64": True,
    "has_subgroup_matrix_multiply_accumulate": False,
    "has_subgroup_matrix_multiply_accumulate_tensor_float32": False,
    "has_subgroup_2d_block_io": False,
    "has_bfloat16_conversions": False,
}
_XE = {**_GENERIC, **{name: True for name, value in _GENERIC.items() if value is False}}
_XE1 = {
    "has_fp64": False,
    "has_subgroup_matrix_multiply_accumulate_tensor_float32": False,
    "has_subgroup_2d_block_io": False,
}
PROPERTIES: dict[str, dict[str, Any]] = {
    "pvc": {**_XE, "version": "12.60.7", "gpu_eu_count": 512, "gpu_subslice_count": 64},
    "bmg": {**_XE, "version": "20.1.4", "gpu_eu_count": 160, "gpu_subslice_count": 20},
    "dg2": {**_XE, **_XE1, "version": "12.55.8", "sub_group_sizes": [8, 16, 32]},
    HOST: _GENERIC,
}
"""What Intel's compiler wants to know of a device, as drivers report it."""


@dataclass(frozen=True, slots=True)
class Target:
    """One chip as the compiler knows it.

    Attributes:
        profile: the chip.
        gpu: what ``triton.compile`` takes.
        backend: the plugin that serves it.
        absent: of ``FEATURES``, those that it does not have.
    """

    profile: Profile
    gpu: GPUTarget
    backend: str
    absent: frozenset[str] = frozenset()


def target(arch: str) -> Target:
    """The chip of that architecture.

    Raises:
        ValueError: there is no profile of it, or this Triton does not compile for Intel's chips.
    """
    if arch == HOST:
        # Its compiler takes minutes for what a thread of a larger tile does.
        small = {"warp_width": 16, "warps": 2, "block": 16, "multiprocessors": 2}
        profile = replace(INTEL["dg2"], arch=HOST, **small)
        return Target(profile, _intel(HOST, 16), "xpu")
    if arch not in EVERY:
        raise ValueError(f"arch: expected one of {', '.join(EVERY)}, got {arch!r}")
    profile, backend = EVERY[arch], BACKENDS[arch]
    if backend == "xpu":
        has = PROPERTIES[arch]
        there = {"float64": has["has_fp64"], "block reads": has["has_subgroup_2d_block_io"]}
        absent = frozenset(name for name, present in there.items() if not present)
        return Target(profile, _intel(arch, profile.warp_width), backend, absent)
    name: Any = arch if backend == "rocm" else int(arch.removeprefix("sm"))
    compiler = "hip" if backend == "rocm" else "cuda"
    return Target(profile, GPUTarget(compiler, name, profile.warp_width), backend)


def _intel(arch: str, width: int) -> GPUTarget:
    compilers = triton.backends.backends
    if "intel" not in compilers:
        here = ", ".join(compilers)
        raise ValueError(f"arch: {arch} needs triton-xpu, this Triton compiles for {here}")
    compiler: Any = compilers["intel"].compiler
    # Its compiler builds a parser of architecture names from C, which needs the driver's headers.
    # What the parser would say selects a query of the driver, and there is none.
    parser = SimpleNamespace(parse_device_arch=lambda number: "")
    compiler.__init__.__globals__["compile_module_from_src"] = lambda source, name: parser
    if arch == HOST:
        # An attribute that only drivers of GPUs take.
        translate = compiler.make_spv
        compiler.make_spv = staticmethod(
            lambda code, *rest: translate(re.sub(r" ?!max_work_group_size !\d+", "", code), *rest)
        )
    return GPUTarget("xpu", {"name": arch, **PROPERTIES[arch]}, width)
