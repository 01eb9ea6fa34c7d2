"""Small random problems of any contract, made from what the contract says of its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import fla_core.ops  # noqa: F401  (fills OPERATORS)
from fla_core.call import Call
from fla_core.contract import Contract, TensorSpec
from fla_core.dispatch import policy_text
from fla_core.errors import ContractError
from fla_core.invoke import invoke
from fla_core.prepare import OPERATORS, Operator, Prepared, prepare
from fla_core.seqlens import SeqLens

DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}
CPU = torch.device("cpu")
GATES = ("g", "gk")
"""Gates that a base call has; of two the first that the contract knows."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One call: its operator, its tensors in contract order, its switches and further numbers.

    ``bounds`` are those of packed sequences, None for a dense batch.
    """

    operator: Operator
    tensors: Mapping[str, Tensor | None]
    flags: frozenset[str]
    bounds: tuple[int, ...] | None
    device: torch.device
    options: Mapping[str, float] = field(default_factory=dict)

    @property
    def contract(self) -> Contract:
        """What is computed."""
        return self.operator.contract

    @property
    def present(self) -> dict[str, Tensor]:
        """The tensors that are there."""
        return {name: tensor for name, tensor in self.tensors.items() if tensor is not None}

    @property
    def trained(self) -> frozenset[str]:
        """Names of the tensors whose gradient is wanted."""
        return frozenset(name for name, x in self.present.items() if x.requires_grad)

    @property
    def cu_seqlens(self) -> Tensor | None:
        """Boundaries of packed sequences on the device."""
        if self.bounds is None:
            return None
        return torch.tensor(self.bounds, dtype=torch.int32, device=self.device)

    def plan(self, backend: str | None) -> Prepared:
        """Check and plan the call without running it."""
        tensors, policy = dict(self.tensors), policy_text(backend)
        return prepare(self.operator, tensors, self.flags, self.cu_seqlens, policy, self.trained)

    def run(self, backend: str | None) -> dict[str, Tensor]:
        """Call the operator the way its public function does; outputs by name."""
        outputs = invoke(
            self.operator,
            tuple(self.tensors[name] for name in self.operator.inputs),
            tuple(name in self.flags for name in self.contract.flags),
            cu_seqlens=self.cu_seqlens,
            options=tuple(self.options.get(name) for name in self.contract.options),
            backend=backend,
        )
        names = [spec.name for spec in self.contract.outputs_for(self.flags)]
        return dict(zip(names, outputs, strict=True))

    def call(self, tensors: Mapping[str, Tensor | None], features: frozenset[str]) -> Call:
        """The same call with other tensors, as the oracle takes it."""
        seqlens = None
        if self.bounds is not None:
            seqlens = SeqLens(torch.tensor(self.bounds, dtype=torch.int32), self.bounds)
        options = {name: self.options.get(name) for name in self.contract.options}
        q = tensors["q"]
        assert q is not None
        scale = float(q.shape[-1]) ** -0.5
        return Call(self.contract, self.operator.form, tensors, scale, features, seqlens, options)


def make(
    name: str,
    sizes: Mapping[str, int],
    dtype: torch.dtype,
    device: torch.device,
    *,
    optional: Sequence[str],
    flags: frozenset[str] = frozenset(),
    bounds: tuple[int, ...] | None = None,
    options: Mapping[str, float] | None = None,
    grad: bool = False,
    seed: int = 0,
    drawn_on: torch.device = CPU,
) -> Problem:
    """Draw the required tensors of an operator and the optional ones that are named.

    Keys have unit length, log gates are negative, beta lies in (0, 1), as in trained models. Each
    kind of device that draws has numbers of its own.
    """
    op = OPERATORS[name]
    generator = torch.Generator(drawn_on).manual_seed(seed)
    tensors: dict[str, Tensor | None] = {}
    for spec in op.contract.inputs:
        tensors[spec.name] = None
        if not spec.optional or spec.name in optional:
            drawn = _draw(spec, sizes, generator)
            kept = dtype if spec.dtype == "activation" or dtype == torch.float64 else torch.float32
            # A decay fixed by the layer is a constant: its gradient is one number a head, too few
            # to take a root mean square of.
            trained = grad and spec.name != "g_gamma"
            tensors[spec.name] = drawn.to(device, kept).requires_grad_(trained)
    return Problem(op, tensors, flags, bounds, device, options or {})


def _draw(spec: TensorSpec, sizes: Mapping[str, int], generator: torch.Generator) -> Tensor:
    shape = [_size(letter, sizes) for letter in spec.axes]
    x = torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device)
    if spec.name == "k":
        return F.normalize(x, dim=-1)
    if spec.name in ("g", "gk", "gv"):
        return -0.1 * F.softplus(x)
    if spec.name == "g_gamma":
        return -0.05 - 0.05 * x.sigmoid()
    return x.sigmoid() if spec.name in ("beta", "b", "w", "initial_z") else x


def _size(letter: str, sizes: Mapping[str, int]) -> int:
    first, star, second = letter.partition("*")
    return sizes[first] * sizes[second] if star else sizes.get(letter, 1)


def base_inputs(name: str, contract: Contract) -> list[str]:
    """Optional arguments a plain call of a public operator has: its gate, beta, a first state."""
    known = [spec.name for spec in contract.inputs if spec.optional]
    fixed_decay = name.endswith(("retention", "lightning_attn"))
    gates = ["g_gamma"] if fixed_decay else [gate for gate in GATES if gate in known][:1]
    return [arg for arg in (*gates, "beta", "initial_state") if arg in known]


def find_device(text: str) -> torch.device:
    """The device of that name, or the machine's accelerator, or the CPU.

    Raises:
        ContractError: there is no such device here.
    """
    if not text:
        found = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if found is None else torch.device(found.type, 0)
    try:
        device = torch.device(text)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        got = f"{text!r}: {str(error).splitlines()[0]}"
        raise ContractError("fla-kernels", "device", "a device of this machine", got) from None
    return device


def find_dtype(text: str) -> torch.dtype:
    """``bf16`` or ``bfloat16`` as a torch dtype.

    Raises:
        ContractError: it is none of ours.
    """
    dtype: Any = DTYPES.get(text) or getattr(torch, text, None)
    if dtype not in DTYPES.values():
        raise ContractError("fla-kernels", "dtype", " | ".join(DTYPES), repr(text))
    found: torch.dtype = dtype
    return found
