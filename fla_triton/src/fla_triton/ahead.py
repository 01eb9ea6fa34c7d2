"""Compiling side by side what a call would compile one kernel after another.

A kernel takes seconds to compile, on one core, and a first call launches many. So the launch that
first finds nothing compiled has the host code of its call run once more, and that of the backward
pass where one will follow, on tensors without memory: the launches are noted in place of made, and
threads compile their kernels together (:mod:`fla_triton.together`).

What is compiled here is what the launches themselves would ask for; a kernel that cannot be
compiled says so when it is launched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fla_core.call import Call
from fla_triton.together import compile_together, compiled_by_threads


@dataclass(frozen=True, slots=True)
class Noted:
    """A launch that was not made.

    Attributes:
        kernel, grid, arguments: what would run.
        told: what the compiler would be.
        key: what tells its compiled kernel from others of a device.
    """

    kernel: Any
    grid: int
    arguments: tuple[Any, ...]
    told: Mapping[str, Any]
    key: tuple[Any, ...]


class _Current(threading.local):
    """What this thread is at: how to run its host code again, and the launches it notes if it is.

    The former is forgotten when it is used: once a call.
    """

    again: Callable[[], object] | None = None
    noted: list[Noted] | None = None


current = _Current()


class _Plainly(TorchFunctionMode):
    """What is made of tensors without memory, where torch would import symbolic shapes for it.

    Those take half a second, and nothing else of a call, or of ``loss.backward()``, wants them.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.empty_like and not kwargs and args[0].is_contiguous():
            return args[0].new_empty(args[0].shape)
        floating = func is Tensor.sum and args[0].is_floating_point()
        if floating and not kwargs and args[1:] == (0,):
            return args[0].new_empty(args[0].shape[1:])
        return func(*args, **(kwargs or {}))


@contextmanager
def noting() -> Iterator[list[Noted]]:
    """Note the launches of this thread in place of making them."""
    noted = current.noted = []
    try:
        yield noted
    finally:
        current.noted = None


def forward_again(kernels: Any, call: Call, save: bool) -> None:
    """Run the host code of forward, and of backward if it may follow, without memory."""
    bare = call.holding({name: without_memory(x) for name, x in call.tensors.items()})
    outputs, residuals = kernels.forward(bare, save)
    if save:
        given = {name: x for name, x in call.tensors.items() if x is not None}
        trained = frozenset(name for name, x in given.items() if x.requires_grad)
        # Autograd saw other tensors if arguments were made of them; most want every gradient.
        needs = trained or frozenset(given)
        grads = (torch.empty_like(outputs[0]), *[None] * (len(outputs) - 1))
        kernels.backward(bare, residuals, grads, needs)


def backward_again(
    kernels: Any,
    call: Call,
    residuals: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    needs: frozenset[str],
) -> None:
    """Run the host code of backward without memory."""
    bare = call.holding({name: without_memory(x) for name, x in call.tensors.items()})
    kept, given = (tuple(map(without_memory, some)) for some in (residuals, grads))
    kernels.backward(bare, kept, given, needs)


def compile_missing(kernel: Any) -> None:
    """Compile whatever the call in progress launches, if the kernel is the first it lacks."""
    again, current.again = current.again, None
    if again is None or not compiled_by_threads(kernel):
        return
    # What goes wrong here goes wrong in the call itself, which then says so. Modes of the caller do
    # not see it: selective checkpointing would keep tensors without memory, to recompute with them.
    with noting() as noted, suppress(Exception), torch._C._DisableTorchDispatch(), _Plainly():
        again()
    compile_together([(one.kernel, one.arguments, one.told) for one in noted])


def without_memory(tensor: Tensor | None) -> Tensor | None:
    """A tensor of the same shape and dtype that holds nothing."""
    # The like of a fake tensor would be another.
    return None if tensor is None else torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
