"""Launching kernels with little Python: what the compiler specialises on is looked up, not redone.

Triton's own launch binds and inspects every argument anew, which for a kernel of thirty arguments
takes as long as a small kernel runs. Kernels launched here take tensors, None and numbers first,
then constants; their numbers are never specialised, so that the kinds of arguments decide which
compiled kernel serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

_INT32 = 2**31

_compiled: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


def launch(
    kernel: Any,
    grid: int,
    arguments: tuple[Any, ...],
    constants: Mapping[str, Any],
    warps: int,
    stages: int,
) -> None:
    """Run a kernel on the current device and stream.

    Args:
        kernel: a ``triton.jit`` function, none of whose numbers is specialised.
        grid: programs on axis 0; nothing happens when there are none.
        arguments: what comes before the constants, in order; the first is a tensor.
        constants: ``tl.constexpr`` parameters by name.
        warps, stages: of a program.
    """
    if not grid:
        return
    key = (
        kernel,
        arguments[0].device,
        warps,
        stages,
        *constants.values(),
        *map(_kind, arguments),
    )
    ready = _compiled.get(key)
    if ready is not None:
        compiled, ordered = ready
        compiled[(grid, 1, 1)](*arguments, *ordered)
        return
    compiled = kernel[(grid,)](*arguments, **constants, num_warps=warps, num_stages=stages)
    if compiled is not None:  # the interpreter compiles nothing
        names = kernel.arg_names[len(arguments) :]
        _compiled[key] = compiled, tuple(constants[name] for name in names)


def _kind(argument: Any) -> Any:
    """What a compiled kernel depends on: dtype and alignment of a tensor, width of a number."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16
    if isinstance(argument, int):
        return -_INT32 <= argument < _INT32
    return type(argument)
