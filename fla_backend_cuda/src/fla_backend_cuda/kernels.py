"""The portable kernels on NVIDIA GPUs: each family by its name, with the profile of its chip."""

from __future__ import annotations

from functools import cache

import torch

from fla_core.plugins import detect
from fla_triton.profiles import PROFILES, Profile
from fla_triton.serve import Served, family
from fla_triton.tuner import Tuner, tuner_of

PACKAGE = "fla_backend_cuda"


def arch_of(index: int | None) -> str:
    """Architecture of a device, ``"sm90"``."""
    return detect.gpu_arch(torch, index or 0)


def profile_of(index: int | None) -> Profile:
    """What is known of a device's chip."""
    return PROFILES[arch_of(index)]


@cache
def __getattr__(name: str) -> Served:
    """The family of that name, as ``fla_triton.declared`` names it."""
    if name.startswith("_"):
        raise AttributeError(name)
    return family(name, PACKAGE, arch_of)


def tuner(device: str) -> Tuner:
    """What ``fla-kernels tune`` asks for."""
    return tuner_of(PACKAGE, "cuda", arch_of(torch.device(device).index))
