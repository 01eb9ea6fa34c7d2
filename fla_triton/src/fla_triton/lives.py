"""Which temporaries of a call may lie in one allocation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Span = tuple[int, int]
"""The first and the last step of a life."""

Group = tuple[Span, list[int]]
"""Life and members of one allocation."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What the steps of a call take that is no argument of it.

    Attributes:
        lives: of each piece of memory, by a number that stands for it.
        sizes: bytes.
        alone: pieces that are an allocation each.
    """

    lives: Mapping[int, Span]
    sizes: Mapping[int, int]
    alone: frozenset[int]

    def groups(self) -> list[Group]:
        """Allocations by their lives, as few as take no more memory than a piece each would."""
        held = [0] * (1 + max(last for _, last in self.lives.values()))
        for one, life in self.lives.items():
            for step in _steps(life):
                held[step] += self.sizes[one]
        most = max(held)
        joined: list[Group] = []
        for life, one in sorted((self.lives[x], x) for x in self.lives.keys() - self.alone):
            for place, (span, members) in enumerate(joined):
                wider = around(life, span)
                parts = (span, sum(self.sizes[x] for x in members)), (life, self.sizes[one])
                more = {
                    step: sum(size for part, size in parts if step not in _steps(part))
                    for step in _steps(wider)
                }
                if all(held[step] + size <= most for step, size in more.items()):
                    for step, size in more.items():
                        held[step] += size
                    joined[place] = wider, [*members, one]
                    break
            else:
                joined.append((life, [one]))
        return sorted([*joined, *((self.lives[one], [one]) for one in self.alone)])


def _steps(life: Span) -> range:
    return range(life[0], life[1] + 1)


def around(one: Span, other: Span) -> Span:
    """The life of what is there in both."""
    return min(one[0], other[0]), max(one[1], other[1])
