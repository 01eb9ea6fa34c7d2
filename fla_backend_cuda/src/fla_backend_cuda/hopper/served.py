"""What the plugin registers of this package."""

from __future__ import annotations

from fla_backend_cuda.hopper.decay import ChannelKernels, Kernels
from fla_backend_cuda.hopper.delta import FAMILIES
from fla_backend_cuda.kernels import profile_of
from fla_triton import together
from fla_triton.serve import served

together.SECONDS.update(
    delta_overlapped=5.5,
    channel_chunk_gradients=4.4,
    across_segments=4.1,
    channel_pairs=2.1,
    delta_chunk_gradients=1.7,
    decayed_over_time=1.5,
)

scalar_decay = served(lambda index: Kernels(profile_of(index)))
channel_decay = served(lambda index: ChannelKernels(profile_of(index)))
delta = served(lambda index: FAMILIES["delta"](profile_of(index)))
delta_channel = served(lambda index: FAMILIES["delta_channel"](profile_of(index)))
