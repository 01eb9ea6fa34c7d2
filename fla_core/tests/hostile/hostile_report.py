"""What came of a scenario, as the tests read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Report:
    """What came of a scenario.

    Attributes:
        error: type, text, notes and cause of what the call raised; empty if nothing.
        wrong: outputs and gradients that differ from the float64 result.
        changed: inputs that are no longer what they were.
        states: summary of each plugin, in order of discovery.
        others: reports of calls to other backends, made afterwards in the same process.
    """

    error: dict[str, str]
    wrong: list[str]
    changed: list[str]
    warnings: list[str]
    states: list[tuple[str, str]]
    notes: dict[str, list[str]]
    others: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The whole message of the error, with its notes."""
        return f"{self.error['text']}\n{self.error['notes']}" if self.error else ""

    @property
    def silently_wrong(self) -> list[str]:
        """What the user would have taken for right."""
        return [] if self.error else [*self.wrong, *self.changed]

    def state(self, name: str) -> str:
        """Summary of the last plugin of that name."""
        return dict(map(tuple, self.states))[name]
