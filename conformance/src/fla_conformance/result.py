"""What became of a check, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Outcome(str, Enum):
    """Every way a check can end. Only ``PASS`` counts as passed."""

    PASS = "pass"
    FAIL_NUMERIC = "fail.numeric"
    FAIL_SHAPE = "fail.shape"
    FAIL_DTYPE = "fail.dtype"
    FAIL_LAW = "fail.law"
    REFUSED_DECLARED = "refused.declared"
    REFUSED_UNDECLARED = "refused.undeclared"
    ACCEPTED_UNDECLARED = "accepted.undeclared"
    NOT_EXECUTED = "not_executed"
    CRASH = "crash"
    TIMEOUT = "timeout"
    XFAIL = "xfail"
    XPASS = "xpass"
    NOT_DISCRIMINATING = "not_discriminating"


@dataclass(frozen=True, slots=True)
class Margin:
    """Error over limit of the worst output or gradient; at most 1 passes.

    Attributes:
        block: over (batch, head) blocks.
        token: over (token, head) rows.
        name: the output or gradient that reached the largest of all.
        ratio: RMS(out - gold) / RMS(gold) of the same tensor, the metric used elsewhere.
        gain: of the factor by which all of a tensor is too large or too small.
    """

    block: float
    token: float
    name: str
    ratio: float
    gain: float = 0.0

    @property
    def worst(self) -> float:
        """The largest of block, token and gain; infinite where one of them is not a number."""
        found = (self.block, self.token, self.gain)
        return max(math.inf if math.isnan(size) else size for size in found)


@dataclass(frozen=True, slots=True)
class Result:
    """One check of one implementation.

    Attributes:
        id: the case's id, followed by ``:law`` for a law.
        implementation: ``plugin:contract#variant``.
        level: the level the check belongs to, ``"L1"``.
        outcome: how it ended.
        case: the case as plain data, enough to run it again.
        detail: what a person should read; empty when passed.
        margin: of a numerical check.
        plan: plan that the witness saw.
        seconds: wall time.
        law: name of the law, ``""`` for a numerical check.
        expected: reason of the expectation that turned a failure into ``xfail``.
    """

    id: str
    implementation: str
    level: str
    outcome: Outcome
    case: Mapping[str, Any] = field(default_factory=dict)
    detail: str = ""
    margin: Margin | None = None
    plan: str = ""
    seconds: float = 0.0
    law: str = ""
    expected: str = ""
