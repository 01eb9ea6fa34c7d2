"""Tuning: what a plugin offers whose kernels have tiles to choose.

The hook ``fla_tuner`` names a function from a device to a :class:`Tuner`. The tuner knows what the
tiles mean; ``fla-kernels tune`` proposes none itself, but runs each in a process that may die of
it, compares what comes out with the float64 definition, and times it. Tiles travel as plain data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

Tiles = Mapping[str, Any]
"""Plain data that the tuner alone understands."""


@dataclass(frozen=True, slots=True)
class Task:
    """One search: tiles of one direction of one family of kernels, for one size of heads.

    Attributes:
        family: whose tiles.
        direction: ``"forward"`` or ``"backward"``; the latter is timed with its forward.
        operator: public name of the call that is timed.
        sizes: ``B T H K V`` of that call.
        dtype: of q, k and v, ``"bfloat16"``.
    """

    family: str
    direction: str
    operator: str
    sizes: Mapping[str, int]
    dtype: str

    @property
    def text(self) -> str:
        """``delta forward K128 V128 bfloat16 (chunk_gated_delta_rule)``."""
        size = f"K{self.sizes['K']} V{self.sizes['V']}"
        return f"{self.family} {self.direction} {size} {self.dtype} ({self.operator})"

    def to_json(self) -> dict[str, Any]:
        """The fields as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Measured:
    """What became of tiles that were tried.

    Attributes:
        tiles: the tiles.
        ms: median milliseconds of a call; None when they failed.
        failure: how they failed, ``""`` when they are right.
    """

    tiles: Tiles
    ms: float | None = None
    failure: str = ""


class Tuner(Protocol):
    """What a plugin knows of the tiles of its kernels on one device."""

    @property
    def table(self) -> Path:
        """Where the plugin looks for the table of this device."""

    def tasks(self, contracts: Sequence[str]) -> Sequence[Task]:
        """What there is to tune for some contracts."""

    def candidates(self, task: Task, number: int, found: Sequence[Measured]) -> Sequence[Tiles]:
        """Tiles of round ``number`` (from 0), the defaults first; none ends the search.

        Args:
            task: what they are for.
            number: of the round.
            found: what earlier rounds measured, in the order in which it was proposed.
        """

    def serving(self, task: Task, tiles: Tiles) -> Any:
        """A plugin (module or object with hooks) named ``tuned`` that computes with these tiles."""

    def document(
        self,
        best: Sequence[tuple[Task, Measured, Measured]],
        facts: Mapping[str, str],
        earlier: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """The table: of each task the best tiles, and the defaults beside them.

        Args:
            best: task, best, defaults.
            facts: the machine that it was measured on.
            earlier: the table that is there, whose other entries are kept; None without one.

        Raises:
            ValueError: ``earlier`` is no table.
        """
