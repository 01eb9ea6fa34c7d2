"""A family of kernels on whichever device a call's tensors lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from torch import Tensor

from fla_core.call import Call

Outputs = tuple[Tensor, ...]


class Kernels(Protocol):
    """Host code of one family on one kind of chip."""

    def forward(self, call: Call, save: bool) -> tuple[Outputs, Outputs]:
        """Outputs, and what backward needs beside the inputs."""

    def backward(
        self,
        call: Call,
        residuals: Outputs,
        grads: Sequence[Tensor | None],
        needs: frozenset[str],
    ) -> Mapping[str, Tensor]:
        """Gradients of the inputs in ``needs``."""


@dataclass(frozen=True, slots=True)
class Served:
    """What an implementation names as its forward and backward.

    Attributes:
        on: the family's kernels for a device index.
    """

    on: Callable[[int | None], Kernels]

    def forward(self, call: Call, save: bool) -> tuple[Outputs, Outputs]:
        """Outputs of a call, and what backward needs beside its inputs."""
        return self.on(call.q.device.index).forward(call, save)

    def backward(
        self,
        call: Call,
        residuals: Outputs,
        grads: Sequence[Tensor | None],
        needs: frozenset[str],
    ) -> Mapping[str, Tensor]:
        """Gradients of the inputs in ``needs``."""
        return self.on(call.q.device.index).backward(call, residuals, grads, needs)


def served(on: Callable[[int | None], Kernels]) -> Served:
    """Serve a family; its kernels are made once a device."""
    return Served(cache(on))
