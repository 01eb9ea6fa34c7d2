"""A witness of what runs: one implementation alone, and a line for each time it is called.

Used by the conformance suite. A result proves something of an implementation only if that
implementation computed it; a fallback, a cached answer or a sibling must not pass in its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, NoReturn

from fla_core.contracts import CONTRACTS
from fla_core.dispatch.candidates import Known, known
from fla_core.dispatch.context import use
from fla_core.dispatch.decision import Decision
from fla_core.dispatch.runtime import RUNTIME
from fla_core.dispatch.trace import Trace
from fla_core.errors import FlaError, layout


class NotWitnessedError(FlaError, RuntimeError):
    """Something else than the witnessed implementation was about to run."""

    def __init__(self, witnessed: str, other: str) -> None:
        self.witnessed, self.other = witnessed, other
        rows = [("witnessed", witnessed), ("next", "let it compute its results itself")]
        super().__init__(layout(f"{other} was asked to compute", rows))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.witnessed, self.other)


@dataclass(frozen=True, slots=True)
class Run:
    """One call of a function of an implementation.

    Attributes:
        direction: ``"forward"``, ``"backward"`` or ``"pooled"``.
        plan: ``"acme:kda#chunk (lowered: l2norm)"``.
        operator: public name the call was made under.
    """

    direction: str
    plan: str
    operator: str


@dataclass(slots=True)
class Witness:
    """What ran since the log was last emptied.

    Attributes:
        identity: the implementation that may run.
        runs: in the order in which they began.
    """

    identity: str
    runs: list[Run] = field(default_factory=list)

    def take(self) -> tuple[Run, ...]:
        """Return what ran and empty the log."""
        taken, self.runs = tuple(self.runs), []
        return taken


@contextmanager
def only(identity: str) -> Iterator[Witness]:
    """Let one implementation run and nothing else, the reference included.

    The policy is closed to its plugin, its contract has no other candidate, and any function of
    another implementation that is reached all the same raises. Plans are dropped on entry and on
    exit. Other threads are concerned too, for as long as the block lasts.

    Args:
        identity: ``plugin:contract#variant``.

    Raises:
        LookupError: no plugin that is loaded has such an implementation.
        NotWitnessedError: out of a call that reaches another implementation.
    """
    witness = Witness(identity)
    plugin, _, _ = identity.partition(":")
    _check_known(identity)
    restriction = _Restriction(witness)
    RUNTIME.forget_plans()
    try:
        RUNTIME.listeners.append(restriction.impose)
        restriction.impose()
        with use(plugin):
            yield witness
    finally:
        RUNTIME.listeners.remove(restriction.impose)
        restriction.lift()
        RUNTIME.forget_plans()


def _check_known(identity: str) -> None:
    _, _, rest = identity.partition(":")
    contract = CONTRACTS.get(rest.partition("#")[0])
    candidates = () if contract is None else RUNTIME.contract(contract).candidates
    if identity not in (candidate.identity for candidate in candidates):
        has = ", ".join(candidate.identity for candidate in candidates) or "none"
        raise LookupError(f"no loaded plugin has the implementation {identity!r}; there are: {has}")


class _Restriction:
    """Narrows what dispatch knows, again each time it forgets."""

    def __init__(self, witness: Witness) -> None:
        self._witness = witness
        self._outer = outer = RUNTIME.trace
        # An outer block's watch would bar what this one is about.
        self._trace = _Watch(outer.user if isinstance(outer, _Watch) else outer, witness)

    def impose(self) -> None:
        RUNTIME.registry.load()
        RUNTIME.known = {name: self._known(name) for name in CONTRACTS}
        RUNTIME._trace = self._trace

    def lift(self) -> None:
        RUNTIME._trace = self._outer

    def _known(self, name: str) -> Known:
        identity = self._witness.identity
        everyone = known(CONTRACTS[name], RUNTIME.registry)
        mine = tuple(c for c in everyone.candidates if c.identity == identity)
        # Of other contracts all remain, so that a call of them is told why it may not run.
        return Known(mine, everyone.pick) if mine else everyone


class _Watch(Trace):
    """A trace that writes runs down and lets no other implementation run."""

    __slots__ = ("_witness", "user")

    def __init__(self, user: Trace, witness: Witness) -> None:
        super().__init__(user.level)
        self.user, self._witness = user, witness

    def decided(self, decision: Decision) -> None:
        self.user.decided(decision)

    def watch(self, function: Callable[..., Any], direction: str, decision: Decision) -> Any:
        witness = self._witness
        if decision.chosen != witness.identity:
            return _barred(witness.identity, decision.plan)
        inner = self.user.watch(function, direction, decision)
        run = Run(direction, decision.plan, decision.operator)

        @wraps(inner)
        def witnessed(*args: Any, **kwargs: Any) -> Any:
            witness.runs.append(run)
            return inner(*args, **kwargs)

        return witnessed


def _barred(witnessed: str, other: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotWitnessedError(witnessed, other)

    return refuse
