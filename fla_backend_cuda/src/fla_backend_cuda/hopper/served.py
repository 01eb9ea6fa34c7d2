"""What the plugin registers of this package."""

from __future__ import annotations

from fla_backend_cuda.hopper.delta import ChannelKernels, Kernels
from fla_backend_cuda.kernels import chip
from fla_triton.serve import served

delta = served(lambda index: Kernels(chip(index)[0]))
delta_channel = served(lambda index: ChannelKernels(chip(index)[0]))
