"""From the words of a command line to the calls that are timed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fla_core.cli._select import public_matching, public_name
from fla_core.cli.calls.bench import anchor, recipes
from fla_core.cli.calls.bench.recipes import Recipe
from fla_core.cli.calls.bench.rows import DIRECTIONS
from fla_core.cli.calls.bench.workload import Workload
from fla_core.cli.calls.warm import parse_shape
from fla_core.contracts import public_names
from fla_core.errors import ContractError

ON_DEVICE, ON_CPU = "2,8192,16,128,128", "1,512,2,64,64"
"""Shapes that are timed when none is given."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What to time.

    Attributes:
        ops: ``OP`` or ``OP:VARIANT``, names or globs; all chunked operators if empty.
        shapes: ``B,T,H,K,V`` or ``B,T,H,HV,K,V``.
        varlen: pack the tokens as that many sequences of mixed lengths; 0 for a dense batch.
        directions: ``fwd`` and ``both``.
        decode: one-token steps too.
        dtype: of q, k and v.
        budget: seconds that one figure may take.
    """

    ops: Sequence[str]
    shapes: Sequence[str]
    varlen: int
    directions: Sequence[str]
    decode: bool
    dtype: torch.dtype
    budget: float

    def check(self) -> None:
        """Look at what the calls themselves do not look at.

        Raises:
            ContractError: a direction is unknown, the number of sequences is negative, or no time
                is left to measure in.
        """
        for direction in self.directions:
            if direction not in DIRECTIONS[:2]:
                expected = " | ".join(DIRECTIONS[:2])
                raise ContractError("bench", "direction", expected, repr(direction))
        if self.varlen < 0:
            raise ContractError("bench", "varlen", "a number of sequences", str(self.varlen))
        if not 0 < self.budget < math.inf:
            raise ContractError("bench", "budget", "a positive number of seconds", str(self.budget))

    def calls(self) -> Iterator[tuple[Workload, str]]:
        """Each call with its direction; shapes vary slowest.

        Raises:
            UnknownOperatorError: nothing matches a name.
            ContractError: a variant or a shape cannot be understood.
        """
        wanted = list(self._recipes())
        for text in self.shapes:
            for recipe in wanted:
                workload = self._shaped(recipe, text)
                yield from ((workload, direction) for direction in self.directions)
            if self.decode:
                yield from ((workload, "decode") for workload in self._steps(wanted, text))

    def anchors(self) -> Iterator[tuple[Workload, str]]:
        """The calls of softmax attention beside them; it knows no packed sequences."""
        for text in self.shapes if not self.varlen else ():
            parts = text.split(",")
            dense = ",".join((*parts[:3], *parts[-2:]))
            for direction in self.directions:
                yield self._shaped(anchor.RECIPE, dense), direction

    def _recipes(self) -> Iterator[Recipe]:
        for word in self.ops or _chunked():
            pattern, _, variant = word.partition(":")
            is_glob = any(character in pattern for character in "*?[")
            names = public_matching(pattern) if is_glob else [public_name(pattern)]
            for name in names:
                yield from recipes.find(name, variant)

    def _shaped(self, recipe: Recipe, text: str) -> Workload:
        sizes = parse_shape(recipe.operator, text)
        if not self.varlen:
            return Workload(recipe, sizes, None, self.dtype)
        total = sizes["B"] * sizes["T"]
        packed = {**sizes, "B": 1, "T": total}
        return Workload(recipe, packed, recipes.mixed_lengths(total, self.varlen), self.dtype)

    def _steps(self, wanted: Sequence[Recipe], text: str) -> Iterator[Workload]:
        contracts = {public_names()[recipe.operator][0].name for recipe in wanted}
        for name, (contract, form) in public_names().items():
            if form == "recurrent" and contract.name in contracts:
                contracts.remove(contract.name)
                sizes = {**parse_shape(name, text), "T": 1}
                yield Workload(recipes.stepped(name), sizes, None, self.dtype)


def _chunked() -> list[str]:
    found = public_names().items()
    return [
        name
        for name, (contract, form) in found
        if form == "chunk" and name.startswith("chunk_") and name not in dict(contract.aliases)
    ]
