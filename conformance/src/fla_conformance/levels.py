"""The ladder L0 to L4, and how high an implementation stands on it, computed from results alone.

A level is reached by one implementation of one contract revision, for one dtype, on one
architecture. It takes at least one passed check of that level, no check of it that failed, and
every level below. What nobody ran proves nothing: an implementation without a backward stays at L1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fla_conformance.result import Outcome, Result
from fla_core.contracts import CONTRACTS
from fla_core.domain import SHORT_DTYPES

LEVELS = ("L0", "L1", "L2", "L3", "L4")

MEANING = {
    "L0": "the card is valid and importing the plugin changes nothing",
    "L1": "forward agrees with the float64 recurrence",
    "L2": "gradients agree with those of the float64 recurrence",
    "L3": "laws hold, random cases agree, the declared domain is honest both ways",
    "L4": "torch.compile, graph capture and every claim are proved",
}

TOLERATED = frozenset({Outcome.PASS, Outcome.XFAIL, Outcome.REFUSED_DECLARED})
"""Outcomes that do not stand in the way of a level; only ``PASS`` speaks for it."""


def up_to(level: str) -> tuple[str, ...]:
    """The levels up to and including one.

    Raises:
        ValueError: there is no such level.
    """
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}, got {level!r}")
    return LEVELS[: LEVELS.index(level) + 1]


@dataclass(frozen=True, slots=True)
class Standing:
    """How high one implementation stands for one dtype.

    Attributes:
        implementation: ``plugin:contract#variant``.
        revision: contract revision it was checked against.
        dtype: dtype name of q; ``""`` when only checks without a dtype were run.
        arch: architecture, ``"sm90"``.
        counts: how often each outcome occurred, by level.
        claims: whether the run was whole; one that was narrowed or cut short reaches no level.
    """

    implementation: str
    revision: int
    dtype: str
    arch: str
    counts: Mapping[str, Mapping[Outcome, int]] = field(default_factory=dict)
    claims: bool = True

    @property
    def contract(self) -> str:
        """Name of the contract."""
        return contract_of(self.implementation)

    @property
    def level(self) -> str:
        """The highest level reached, ``""`` when not even L0 is."""
        reached = ""
        for level in LEVELS if self.claims else ():
            if not self.clean(level) or not self.passed(level):
                break
            reached = level
        return reached

    @property
    def xfails(self) -> int:
        """Expected failures at the levels reached."""
        reached = up_to(self.level) if self.level else ()
        return sum(self.counts.get(level, {}).get(Outcome.XFAIL, 0) for level in reached)

    @property
    def badge(self) -> str:
        """``kda@1 · L3 · bf16 · sm90 · 1 xfail``."""
        parts = [
            f"{self.contract}@{self.revision}",
            self.level or "no level",
            SHORT_DTYPES.get(self.dtype, self.dtype),
            self.arch,
            f"{self.xfails} xfail" if self.xfails else "",
        ]
        return " · ".join(filter(None, parts))

    def passed(self, level: str) -> int:
        """How many checks of a level passed."""
        return self.counts.get(level, {}).get(Outcome.PASS, 0)

    def failed(self, level: str) -> int:
        """How many checks of a level stand in its way."""
        found = self.counts.get(level, {})
        return sum(n for outcome, n in found.items() if outcome not in TOLERATED)

    def clean(self, level: str) -> bool:
        """True when nothing of a level stands in its way."""
        return self.failed(level) == 0


def contract_of(implementation: str) -> str:
    """``kda`` of ``acme:kda#chunk``; ``""`` of a plugin's name."""
    return implementation.partition(":")[2].partition("#")[0]


def standings(results: Iterable[Result], arch: str, claims: bool = True) -> list[Standing]:
    """Compute where each implementation stands for each dtype, in a fixed order.

    A result without a dtype counts for every dtype of its implementation, one of the plugin as a
    whole for every implementation.
    """
    rows = sorted(results, key=lambda row: (row.implementation, row.level, row.id))
    dtypes: dict[str, set[str]] = {}
    for row in rows:
        if ":" in row.implementation:
            found = dtypes.setdefault(row.implementation, set())
            found.update(filter(None, [row.case.get("dtype", "")]))
    return [
        Standing(name, revision_of(name), dtype, arch, _counts(rows, name, dtype), claims)
        for name in sorted(dtypes)
        for dtype in sorted(dtypes[name]) or [""]
    ]


def revision_of(implementation: str) -> int:
    """Revision of an implementation's contract in this core."""
    contract = CONTRACTS.get(contract_of(implementation))
    return 0 if contract is None else contract.revision


def _counts(rows: Iterable[Result], implementation: str, dtype: str) -> dict[str, Counter[Outcome]]:
    counts: dict[str, Counter[Outcome]] = {}
    plugin = implementation.partition(":")[0]
    for row in rows:
        concerned = row.implementation in (implementation, plugin)
        if concerned and row.case.get("dtype", "") in ("", dtype):
            counts.setdefault(row.level, Counter())[row.outcome] += 1
    return counts
