"""What normalised linear attention divides by, beside its numerators: host code around kernels.

Nothing of it is as wide as values: sums of keys at the ends of chunks, and a number a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fla_core.call import Call
from fla_core.normaliser import CLEAR, DAMPING, EPS
from fla_triton.calls import Settled, boundaries, chunks_of, float32, qkv
from fla_triton.kernels import normaliser as kernels
from fla_triton.launch import Settling
from fla_triton.plan import Launch, Problem, power_of_two

CHUNK = 64
"""Tokens whose normalisers are formed together."""

BLOCK = 32
"""Chunks whose sums are added up at once."""


def sums_of_nothing(call: Call, problem: Problem) -> Tensor:
    """Sums of keys of a call without tokens, ``[N, 1, H, K]``: what it started from."""
    first, found = call.get("initial_z"), _new_sums(call, problem)
    return found.zero_() if first is None else found.copy_(first)


def residuals(call: Call) -> tuple[tuple[Sequence[int], torch.dtype], ...]:
    """What forward keeps of a normalised call: outputs, and what they were divided by."""
    v = call.v
    return (v.shape, v.dtype), (v.shape[:3], torch.float32)


@dataclass(frozen=True, slots=True)
class Normaliser:
    """The normaliser of one call.

    Attributes:
        call: what is computed; it has the feature ``normalize``.
        todo: how, and kernels that ran for it.
        chunk: tokens at whose end a sum is kept.
        precision: of products of float32.
    """

    call: Call
    todo: Settled[Any]
    chunk: int
    precision: str

    def sums(self) -> tuple[Tensor, Tensor]:
        """Keys up to each chunk, ``[slots, H, K]`` in float32, and all, ``[N, 1, H, K]``."""
        _, k, _ = qkv(self.call)
        sums = self._rows()
        self._launch("z chunks", kernels.chunk_sums, (k, sums), ())
        return self._along(sums, self.call.get("initial_z"), reverse=False)

    def of_tokens(self) -> tuple[Tensor, Tensor]:
        """What outputs are divided by, ``[B, T, H]`` in float32, and the sum of all keys."""
        q, k, _ = qkv(self.call)
        z, last = self.sums()
        w = float32(q, *q.shape[:3])
        told = {"PRECISION": self.precision}
        self._launch("w", kernels.normalisers, (q, k, z, w), (self.call.scale, EPS), told)
        return w, last

    def gradients(
        self, o: Tensor, w: Tensor, do: Tensor, dlast: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of numerators and of ``w``, what keys get from behind their chunk, and z.

        Args:
            o, w: outputs, and what they were divided by.
            do, dlast: gradients of the outputs and of the last sum of keys.
        """
        q, _, _ = qkv(self.call)
        dx, dw, sums = torch.empty_like(o), torch.empty_like(w), self._rows()
        values = self.todo.problem.V
        told = {"V": values, "BV": min(power_of_two(values), 128)}
        tensors = (o, do, w, q, dx, dw, sums)
        self._launch("quotient", kernels.quotient_gradients, tensors, (self.call.scale,), told)
        return dx, dw, *self._along(sums, dlast, reverse=True)

    def balance(self, z: Tensor, dq: Tensor) -> None:
        """Free the gradient of q of the multiple of z that breaks ``q . dq = 0``, in place."""
        q, k, _ = qkv(self.call)
        numbers = (self.call.scale, DAMPING, CLEAR)
        told = {"PRECISION": self.precision}
        self._launch("balance", kernels.balance, (q, k, z, dq), numbers, told)

    def _rows(self) -> Tensor:
        problem = self.todo.problem
        q, _, _ = qkv(self.call)
        return float32(q, problem.chunks(self.chunk), problem.heads, problem.K)

    def _constants(self) -> dict[str, Any]:
        problem = self.todo.problem
        return {"H": problem.heads, "K": problem.K, "VARLEN": problem.packed}

    def _tiles(self) -> dict[str, int]:
        return {"BK": power_of_two(self.todo.problem.K), "C": self.chunk}

    def _launch(
        self,
        name: str,
        kernel: Any,
        tensors: tuple[Tensor, ...],
        numbers: tuple[float, ...],
        told: dict[str, Any] | None = None,
    ) -> None:
        """Launch a kernel of which a program takes one chunk of one head."""
        table, count = chunks_of(self.call, self.todo.problem, self.chunk)

        def settle() -> Settling:
            planned = Launch(name, 0, self._tiles(), 4, 1, 0)
            return kernel, planned, {**self._constants(), **(told or {})}

        q, _, _ = qkv(self.call)
        arguments = (*tensors, boundaries(self.call), table, q.shape[1], *numbers)
        self.todo.launches.run(name, arguments, settle, count * self.todo.problem.heads)

    def _along(self, sums: Tensor, start: Tensor | None, reverse: bool) -> tuple[Tensor, Tensor]:
        """From sums of chunks those of the chunks before or behind each, and the sum of all."""

        def settle() -> Settling:
            given = {"HAS_START": start is not None}
            planned = Launch("running", 0, {**self._tiles(), "BLOCK": BLOCK}, 4, 1, 0)
            return kernels.running, planned, {**self._constants(), **given, "REVERSE": reverse}

        q, _, _ = qkv(self.call)
        z, last = self._rows(), _new_sums(self.call, self.todo.problem)
        arguments = (sums, z, start, last, boundaries(self.call), q.shape[1])
        problem = self.todo.problem
        name = "dz" if reverse else "z"
        self.todo.launches.run(name, arguments, settle, problem.sequences * problem.heads)
        return z, last


def _new_sums(call: Call, problem: Problem) -> Tensor:
    q, _, _ = qkv(call)
    return float32(q, problem.sequences, 1, problem.heads, problem.K)
