"""The portable kernels on NVIDIA GPUs: each family with the profile and the table of its chip."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

import torch

from fla_triton import delta as _delta
from fla_triton import delta_channel as _delta_channel
from fla_triton import scalar_decay as _scalar_decay
from fla_triton.profiles import PROFILES, Profile
from fla_triton.scalar_decay import Choose, no_table
from fla_triton.serve import served
from fla_triton.tables import load


@cache
def chip(index: int) -> tuple[Profile, Choose]:
    """Profile of a device, and the tiles that were measured on its kind."""
    major, minor = torch.cuda.get_device_capability(index)
    arch = f"sm{major}{minor}"
    table = Path(str(files("fla_backend_cuda") / "tables" / f"{arch}.json"))
    return PROFILES[arch], load(table) if table.exists() else no_table


scalar_decay = served(lambda index: _scalar_decay.Kernels(*chip(index)))
delta = served(lambda index: _delta.Kernels(chip(index)[0]))
delta_channel = served(lambda index: _delta_channel.Kernels(chip(index)[0]))
