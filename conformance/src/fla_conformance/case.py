"""One configuration to check, as data: it has an id, travels as JSON and makes its own inputs."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from fla_core.contract import Contract
from fla_core.contracts import CONTRACTS
from fla_core.domain import SHORT_DTYPES

Direction = Literal["fwd", "bwd"]

REGIMES = ("plain", "long_memory", "fast_decay", "resets", "parallel_keys")
"""Distributions of gates and keys; see :mod:`fla_conformance.inputs`."""


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
    seed: int = 0

    @property
    def definition(self) -> Contract:
        """The contract itself."""
        return CONTRACTS[self.contract]

    @property
    def id(self) -> str:
        """``kda@1/fwd/bf16/chunk/B2.T64.H2.HV4.K16.V8/varlen+l2norm/plain/s0``."""
        shape = ".".join(f"{axis}{size}" for axis, size in self.sizes.items())
        packed = "" if self.lengths is None else ".N" + "-".join(map(str, self.lengths))
        details = [] if self.chunk_size is None else [f"C{self.chunk_size}"]
        details += [f"{name}{value:g}" for name, value in (self.options or {}).items()]
        return "/".join(
            (
                f"{self.contract}@{self.definition.revision}",
                self.direction,
                SHORT_DTYPES[self.dtype],
                self.form,
                shape + packed,
                "+".join(sorted(self.features)) or "base",
                *details,
                self.regime,
                f"s{self.seed}",
            )
        )

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
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        """The case that :meth:`to_json` wrote."""
        lengths = data.get("lengths")
        return cls(
            **{
                **data,
                "features": frozenset(data["features"]),
                "lengths": None if lengths is None else tuple(lengths),
            }
        )
