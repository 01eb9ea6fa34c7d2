"""One configuration to check, as data: it has an id, travels as JSON and makes its own inputs."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from fla_core.contract import Contract
from fla_core.contracts import CONTRACTS
from fla_core.domain import SHORT_DTYPES

Direction = Literal["fwd", "bwd"]

_MANY = 32
"""So many lengths are written out one by one."""

REGIMES = ("plain", "long_memory", "fast_decay", "resets", "parallel_keys", "idle", "loud")
"""Distributions of gates and keys; see :mod:`fla_conformance.draw`."""

GATES = frozenset({"g", "gk", "gv", "beta", "b", "w"})
"""Arguments of a token whose dtype is not that of q: log gates and writing strengths."""


@dataclass(frozen=True, slots=True)
class Case:
    """A call to check.

    Attributes:
        contract: contract name.
        direction: ``"fwd"`` checks outputs, ``"bwd"`` gradients (and outputs).
        dtype: dtype name of q, ``"bfloat16"``.
        form: form the call asks for.
        sizes: ``B T H HV K V``; with ``lengths`` B is 1 and T their sum.
        features: features in use, in the contract's words; ``varlen`` and ``gva`` follow from
            ``lengths`` and ``sizes``.
        lengths: lengths of packed sequences, None for a dense batch.
        regime: distribution of gates and keys.
        options: further float arguments (``lower_bound``).
        chunk_size: hint, None for the implementation's own choice.
        recompute: hint, whether backward recomputes rather than keeps intermediates.
        safe_gate: hint, a promise that every log gate lies in [-5, 0).
        gate_dtype: dtype name of gates and writing strengths; float32 becomes float64 where q is.
        gradients: inputs whose gradient is wanted, in a backward case; None for all.
        seed: of the inputs.
    """

    contract: str
    direction: Direction
    dtype: str
    form: str
    sizes: Mapping[str, int]
    features: frozenset[str] = frozenset()
    lengths: tuple[int, ...] | None = None
    regime: str = "plain"
    options: Mapping[str, float] | None = None
    chunk_size: int | None = None
    recompute: bool = True
    safe_gate: bool = False
    gate_dtype: str = "float32"
    gradients: frozenset[str] | None = None
    seed: int = 0

    @property
    def definition(self) -> Contract:
        """The contract itself."""
        return CONTRACTS[self.contract]

    @property
    def id(self) -> str:
        """``kda@1/fwd/bf16/chunk/B2.T64.H2.HV4.K16.V8/varlen+l2norm/plain/s0``."""
        shape = ".".join(f"{axis}{size}" for axis, size in self.sizes.items())
        packed = "" if self.lengths is None else f".N{_written(self.lengths)}"
        return "/".join(
            (
                f"{self.contract}@{self.definition.revision}",
                self.direction,
                SHORT_DTYPES[self.dtype],
                self.form,
                shape + packed,
                "+".join(sorted(self.features)) or "base",
                *self._details,
                self.regime,
                f"s{self.seed}",
            )
        )

    @property
    def _details(self) -> Iterator[str]:
        """What is not as usual."""
        if self.chunk_size is not None:
            yield f"C{self.chunk_size}"
        if not self.recompute:
            yield "keep"
        if self.safe_gate:
            yield "safe"
        if self.gate_dtype != "float32":
            yield f"gates-{SHORT_DTYPES[self.gate_dtype]}"
        if self.gradients is not None:
            yield "-".join(("grad", *sorted(self.gradients)))
        for name, value in (self.options or {}).items():
            yield f"{name}{value:g}"

    @property
    def key(self) -> int:
        """A number for seeding generators, the same in every process."""
        return zlib.crc32(self.id.encode())

    def but(self, **changes: Any) -> Case:
        """A copy with some fields replaced."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Plain data; :meth:`from_json` reads it back."""
        data = asdict(self)
        data["features"] = sorted(self.features)
        data["gradients"] = None if self.gradients is None else sorted(self.gradients)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        """The case that :meth:`to_json` wrote."""
        lengths, gradients = data.get("lengths"), data.get("gradients")
        return cls(
            **{
                **data,
                "features": frozenset(data["features"]),
                "lengths": None if lengths is None else tuple(lengths),
                "gradients": None if gradients is None else frozenset(gradients),
            }
        )


def _written(lengths: tuple[int, ...]) -> str:
    """Lengths with dashes; of many that come again and again, one round and how often."""
    rounds = (n for n in range(1, len(lengths)) if lengths == lengths[:n] * (len(lengths) // n))
    one = next(rounds, len(lengths)) if len(lengths) > _MANY else len(lengths)
    times = f"x{len(lengths) // one}" if one < len(lengths) else ""
    return "-".join(map(str, lengths[:one])) + times
