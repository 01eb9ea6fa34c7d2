"""A family of kernels on whichever device a call's tensors lie."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from fla_core.call import Call
from fla_core.slots import Slots
from fla_triton.ahead import backward_again, current, forward_again
from fla_triton.fakes import fake_backward, fake_forward
from fla_triton.families import FAMILIES
from fla_triton.profiles import EVERY
from fla_triton.tables import load

Outputs = tuple[Tensor, ...]

OFTEN = 8
"""Calls of a signature and direction from which on they are repeated: noting one takes five."""

_FORWARD, _BACKWARD = "forward repeated", "backward repeated"


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
    """What an implementation names as its forward and backward, and for states in a pool.

    Attributes:
        on: the family's kernels for a device index.
    """

    on: Callable[[int | None], Kernels]

    def forward(self, call: Call, save: bool) -> tuple[Outputs, Outputs]:
        """Outputs of a call, and what backward needs beside its inputs."""
        if isinstance(call.tensors["q"], FakeTensor):
            return fake_forward(self.on(call.q.device.index), call, save)
        known: Any = call.memo.get(_FORWARD, 1)
        if known and known.__class__ is not int and (again := known.run(call)) is not None:
            return tuple(again), ()
        kernels = self.on(call.tensors["q"].device.index)  # type: ignore[union-attr]
        current.again = lambda: forward_again(kernels, call, save)
        try:
            answer = kernels.forward(call, save)
        finally:
            current.again = None
        if known.__class__ is int and not answer[1]:
            _counted(call, _FORWARD, (), lambda bare, _: kernels.forward(bare, save)[0])
        return answer

    def backward(
        self,
        call: Call,
        residuals: Outputs,
        grads: Sequence[Tensor | None],
        needs: frozenset[str],
    ) -> Mapping[str, Tensor]:
        """Gradients of the inputs in ``needs``."""
        if isinstance(call.tensors["q"], FakeTensor):
            return fake_backward(self.on(call.q.device.index), call, residuals, grads, needs)
        names = sorted(needs)
        key = (_BACKWARD, *names, *[None if x is None else x.dtype for x in grads])
        known: Any = call.memo.get(key, 1)
        if known and known.__class__ is not int and (again := known.run(call, grads)) is not None:
            return dict(zip(names, again, strict=True))
        kernels = self.on(call.tensors["q"].device.index)  # type: ignore[union-attr]
        current.again = lambda: backward_again(kernels, call, residuals, grads, needs)
        try:
            found = kernels.backward(call, residuals, grads, needs)
        finally:
            current.again = None
        if known.__class__ is int:

            def answers(bare: Call, bare_grads: Sequence[Tensor | None]) -> list[Tensor]:
                derived = kernels.backward(bare, (), bare_grads, needs)
                return [derived[name] for name in names]

            _counted(call, key, grads, answers)
        return found

    def pooled(self, call: Call, slots: Slots) -> Outputs:
        """Outputs of a call whose states lie in a pool, of a family that knows one."""
        kernels: Any = self.on(call.q.device.index)
        outputs: Outputs = kernels.pooled(call, slots)
        return outputs


def _counted(call: Call, key: Hashable, grads: Sequence[Tensor | None], run: Any) -> None:
    """Count a call of a signature; once they are many note what repeats it, or None."""
    known: Any = call.memo.get(key, 1)
    if known.__class__ is not int:
        return  # another thread noted one meanwhile
    if known < OFTEN:
        call.memo[key] = known + 1
        return
    # Plans are made where there is no Triton too.
    recording: Any = import_module("fla_triton.recording")
    call.memo[key] = recording.record(call, grads, run)


def served(on: Callable[[int | None], Kernels]) -> Served:
    """Serve a family; its kernels are made once a device."""
    return Served(cache(on))


def kernels_for(name: str, package: str, arch: str) -> Kernels:
    """A family's kernels on one kind of chip, with the tiles that were measured there, if any.

    Args:
        name: module of ``fla_triton`` that has the host code.
        package: of the backend; its ``tables/ARCH.json``, if any, holds tiles that were measured.
        arch: the chip, one of ``fla_triton.profiles.EVERY``.
    """
    host: Any = import_module(f"fla_triton.{name}")
    table = Path(str(files(package) / "tables" / f"{arch}.json"))
    tuned = (load(table, name, FAMILIES[name].tiles),) if table.exists() else ()
    made: Kernels = host.Kernels(EVERY[arch], *tuned)
    return made


def family(name: str, package: str, arch_of: Callable[[int | None], str]) -> Served:
    """Serve a family on the chips of one vendor.

    Args:
        name, package: as in :func:`kernels_for`.
        arch_of: architecture of a device by its index.
    """
    return served(lambda index: kernels_for(name, package, arch_of(index)))
