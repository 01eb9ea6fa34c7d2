"""A chunked kernel as a chip with matrix units would run it, emulated on the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fla_conformance.inputs import Inputs
from fla_conformance.run import differentiated
from fla_conformance.witness import only

_PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.bmm.default}
_ADDED = {torch.ops.aten.addmm.default, torch.ops.aten.baddbmm.default}


class _Factors(TorchDispatchMode):
    """Rounds both factors of every float32 product; sums and triangular inverses stay float32."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.rounded = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _PRODUCTS:
            args = tuple(map(self._round, args))
        elif func in _ADDED:
            args = (args[0], *map(self._round, args[1:]))
        return func(*args, **(kwargs or {}))

    def _round(self, x: Tensor) -> Tensor:
        self.rounded += 1
        return x.to(self.dtype).to(x.dtype) if x.dtype == torch.float32 else x


def emulated(inputs: Inputs) -> dict[str, Tensor]:
    """Outputs, and gradients as ``dq`` where ``inputs.grads`` come in."""
    chunked = f"reference:{inputs.case.contract}#chunk"
    with only(chunked), _Factors(inputs.present["q"].dtype) as factors:
        found = differentiated(inputs) if inputs.grads else inputs.run()
    assert factors.rounded, "no product was seen"
    return found
