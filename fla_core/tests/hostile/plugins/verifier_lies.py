"""Accepts everything, and its kernel then fails."""

from hostile_base import hooks

fla_backend, fla_implementations = hooks(
    __name__, verifier=f"{__name__}:verifier", forward=f"{__name__}:forward"
)


def verifier(view):
    return True, None


def forward(call, save):
    raise RuntimeError("misaligned address")
