"""The portable kernels on Intel GPUs: each family by its name, with the profile of its chip."""

from __future__ import annotations

from functools import cache

import torch

from fla_backend_xpu.chips import chip_name
from fla_triton.serve import Served, family
from fla_triton.tuner import Tuner, tuner_of

PACKAGE = "fla_backend_xpu"


def arch_of(index: int | None) -> str:
    """Architecture of a device, ``"pvc"``."""
    return chip_name(torch.xpu.get_device_properties(index or 0))


@cache
def __getattr__(name: str) -> Served:
    """The family of that name, as ``fla_triton.declared`` names it."""
    if name.startswith("_"):
        raise AttributeError(name)
    return family(name, PACKAGE, arch_of)


def tuner(device: str) -> Tuner:
    """What ``fla-kernels tune`` asks for."""
    return tuner_of(PACKAGE, "xpu", arch_of(torch.device(device).index))
