"""Writes to q behind torch's back, as a kernel can."""

import ctypes

from hostile_base import honest_forward, hooks

fla_backend, fla_implementations = hooks(__name__, forward=f"{__name__}:forward")


def forward(call, save):
    outputs = honest_forward(call, save)
    ctypes.memset(call.q.data_ptr(), 0, call.q.nbytes)
    return outputs
