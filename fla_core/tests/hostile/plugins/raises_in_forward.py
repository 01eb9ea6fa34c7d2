"""Raises in its kernel."""

from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__, forward=f"{__name__}:forward")


def forward(call, save):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
