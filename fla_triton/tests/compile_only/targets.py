"""Chips to compile for: what the compiler is asked for, and what its output must contain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from triton.backends.compiler import GPUTarget

from fla_triton.profiles import AMD, EVERY, PROFILES, Profile

BACKENDS = {**dict.fromkeys(PROFILES, "cuda"), **dict.fromkeys(AMD, "rocm")}
"""Which plugin serves a chip."""

MATRIX = {"ptx": ("wgmma.mma_async", "tcgen05.mma", "mma.sync"), "amdgcn": ("v_mfma_", "v_wmma_")}
"""Instructions that multiply matrices, by the text in which they stand."""


@dataclass(frozen=True, slots=True)
class Target:
    """One chip as the compiler knows it.

    Attributes:
        profile: the chip.
        gpu: what ``triton.compile`` takes.
    """

    profile: Profile
    gpu: GPUTarget

    @property
    def backend(self) -> str:
        """The plugin that serves it."""
        return BACKENDS[self.profile.arch]


def target(arch: str) -> Target:
    """The chip of that architecture.

    Raises:
        KeyError: no profile, or no compiler here that serves it.
    """
    profile = EVERY[arch]
    name: Any = arch if BACKENDS[arch] == "rocm" else int(arch.removeprefix("sm"))
    compiler = {"cuda": "cuda", "rocm": "hip"}[BACKENDS[arch]]
    return Target(profile, GPUTarget(compiler, name, profile.warp_width))
