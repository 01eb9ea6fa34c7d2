"""Chips whose plans launch the same: what one's kernels answer to a case, the others' do too.

The interpreter knows nothing of a chip. It runs kernels, with grids, arguments and constants, and
what lies between two launches is host code of all chips. So a case is interpreted once for all
chips that launch the same kernels in the same way, and each is looked at as to whether it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from triton.runtime import interpreter

from fla_conformance.inputs import Inputs
from judging import Tensors

COMPILER_ONLY = ("num_warps", "num_stages", "maxnreg", "PRECISION")
"""What the interpreter makes nothing of; no kernel looks at how its products are to be made."""


class Alike:
    """Answers to cases, by what is launched for them.

    Attributes:
        reused: cases since it was last set whose launches were those of another chip.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Tensors] = {}
        self.reused = 0

    def answer(self, inputs: Inputs, run: Callable[[], Tensors]) -> Tensors:
        """What ``run`` answers, or what it answered when it launched the same for the same case."""
        key = (inputs.case.id, *launches_of(run))
        if key in self._known:
            self.reused += 1
        else:
            self._known[key] = run()
        return self._known[key]


def launches_of(run: Callable[[], object]) -> list[tuple[Any, ...]]:
    """What host code launches, none of which is run.

    Returns:
        of each launch the kernel, its grid, constants, numbers, and of each tensor its dtype,
        shape and which of all tensors so far its memory is.
    """
    found: list[tuple[Any, ...]] = []
    kept: list[Tensor] = []  # memory must not be taken twice
    places: dict[int, int] = {}

    def described(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        kept.append(value)
        place = places.setdefault(value.data_ptr(), len(places))
        return value.dtype, value.shape, value.stride(), place

    def note(self: Any, *arguments: Any, **constants: Any) -> None:
        told = {n: described(x) for n, x in constants.items() if n not in COMPILER_ONLY}
        named = self.fn.__name__, self.grid, *map(described, arguments)
        found.append((*named, tuple(sorted(told.items(), key=lambda pair: pair[0]))))

    original = interpreter.GridExecutor.__call__
    interpreter.GridExecutor.__call__ = note
    try:
        run()
    finally:
        interpreter.GridExecutor.__call__ = original
    return found
