"""Errors are data: each has fields a program can read and one fixed shape a person can read.

The first line says what is wrong; below it stand aligned ``label  text`` rows, ending where
possible in the next thing to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fla_core.dispatch.decision import Decision
    from fla_core.plugins.record import PluginRecord

Row = tuple[str, str]


def layout(headline: str, rows: Iterable[Row]) -> str:
    """Join a headline and its rows, labels padded to one column."""
    rows = [(label, text) for label, text in rows if text]
    width = max((len(label) for label, _ in rows), default=0)
    return "\n".join([headline, *(f"  {label:<{width}}  {text}" for label, text in rows)])


class FlaError(Exception):
    """Base of every error raised by this package."""


class ContractError(FlaError, ValueError):
    """A call breaks its operator's contract. Raised before any computation.

    Attributes:
        operator: public name or contract the call went to.
        argument: the offending argument, or ``""`` when the whole call is meant.
        expected: what the contract asks for.
        got: what the call brought.
    """

    def __init__(self, operator: str, argument: str, expected: str, got: str) -> None:
        self.operator, self.argument = operator, argument
        self.expected, self.got = expected, got
        subject = f"argument '{argument}'" if argument else "the call"
        headline = f"{operator}: {subject} is not valid"
        super().__init__(layout(headline, [("expected", expected), ("got", got)]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.operator, self.argument, self.expected, self.got)


class DtypeError(ContractError, TypeError):
    """A tensor has a dtype, or a value a Python type, that its argument does not take."""


class RemovedKeywordError(ContractError, DeprecationWarning):
    """A keyword of older releases without meaning now; also a ``DeprecationWarning``."""


class UnsupportedError(FlaError, NotImplementedError):
    """A feature that is known and deliberately not offered (yet)."""

    def __init__(self, operator: str, what: str, instead: str = "") -> None:
        self.operator, self.what, self.instead = operator, what, instead
        super().__init__(layout(f"{operator}: {what} is not supported", [("instead", instead)]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.operator, self.what, self.instead)


class UnknownOperatorError(FlaError, LookupError):
    """There is no public operator and no contract of that name."""

    def __init__(self, name: str, close: tuple[str, ...], contracts: tuple[str, ...]) -> None:
        self.name, self.close, self.contracts = name, close, contracts
        rows = [("close", ", ".join(close)), ("contracts", ", ".join(contracts))]
        super().__init__(layout(f"there is no operator {name!r}", rows))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.close, self.contracts)


class PolicyError(FlaError, ValueError):
    """A selection policy (``FLA_BACKEND``, ``use``, ``backend=``) cannot be understood."""

    def __init__(self, text: str, origin: str, problem: str, hint: str = "") -> None:
        self.text, self.origin, self.problem, self.hint = text, origin, problem, hint
        headline = f"cannot use policy {text!r}"
        rows = [("problem", problem), ("from", origin), ("hint", hint)]
        super().__init__(layout(headline, rows))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.text, self.origin, self.problem, self.hint)


class UnknownBackendError(PolicyError):
    """A policy names a backend that is not installed, or an operator that does not exist."""


class NoImplementationError(FlaError, RuntimeError):
    """No candidate accepts the call under the policy in force; ``decision`` lists all and why."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        headline = f"{decision.operator} has no implementation for this call"
        super().__init__(layout(headline, decision.rows()))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.decision,)


class PluginLoadError(FlaError, RuntimeError):
    """A plugin that the user named could not be loaded or probed; ``record`` has its state."""

    def __init__(self, record: PluginRecord, next_step: str = "fla-kernels doctor") -> None:
        self.record, self.next_step = record, next_step
        rows = [("state", record.summary()), ("from", str(record.origin)), ("next", next_step)]
        super().__init__(layout(f"backend {record.name!r} cannot be used", rows))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.record, self.next_step)


class SelectionWarning(UserWarning):
    """A call is served otherwise than its user may expect: by the slow reference, for instance."""


class ImplementationWarning(UserWarning):
    """Something happened while an implementation ran that it may be the cause of."""


class ImplementationError(FlaError, RuntimeError):
    """An implementation broke its promise: wrong outputs, missing gradients, changed inputs."""

    def __init__(
        self, implementation: str, problem: str, expected: str = "", got: str = ""
    ) -> None:
        self.implementation, self.problem = implementation, problem
        self.expected, self.got = expected, got
        without = f"FLA_BACKEND=auto,-{implementation.partition(':')[0]}"
        rows = [
            ("problem", problem),
            ("expected", expected),
            ("got", got),
            ("next", f"report it to the plugin's author; {without} goes on without it"),
        ]
        super().__init__(layout(f"{implementation} breaks the rules of implementations", rows))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.implementation, self.problem, self.expected, self.got)
