"""L0: the card and declarations are valid, and importing the plugin leaves everything as it was.

The plugin is loaded in fresh interpreters, so that what it does there can neither hide behind
modules that are loaded already nor disturb this process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from fla_conformance.result import Outcome, Result
from fla_conformance.run import Target
from fla_conformance.suite import Check, Settings
from fla_core.contract import Contract
from fla_core.plugins.api import Implementation
from fla_core.plugins.load import resolve
from fla_core.plugins.record import PluginRecord
from fla_core.plugins.requirements import remedy
from fla_core.testing import TOOLCHAINS

CLAIMS = frozenset({"deterministic", "graph_capture", "batch_invariant"})
"""Promises that the suite can prove; one it does not know would never be."""

TIMEOUT = 180.0
"""Seconds a plugin may take to be imported and probed in a fresh interpreter."""


class _EndedError(Exception):
    """A check ended without a judgement: no answer came, or what it needs is not here."""

    def __init__(self, outcome: Outcome, text: str) -> None:
        self.outcome = outcome
        super().__init__(text)


Look = Callable[[str], dict[str, Any]]
"""Asks a fresh interpreter to ``load``, ``clean`` or ``probe``."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A plugin, as far as a fresh interpreter needs to know it."""

    name: str
    target: str
    built_in: bool
    device: str
    distribution: str = ""

    @classmethod
    def of(cls, record: PluginRecord, device: str) -> Subject:
        """The subject that is this plugin on a device."""
        origin = record.origin
        return cls(record.name, record.target, record.built_in, device, origin.distribution)


def plugin_results(record: PluginRecord, device: str) -> Iterator[Result]:
    """The checks of the plugin as a whole, carried out; the first that fails is the last."""
    subject = Subject.of(record, device)
    look = cache(partial(_look, subject))  # two checks read the same answer
    for name, check in _PLUGIN_CHECKS.items():
        try:
            problem = check(look, subject)
            outcome = Outcome.FAIL_LAW if problem else Outcome.PASS
        except _EndedError as end:
            problem, outcome = str(end), end.outcome
        yield Result(f"plugin/{name}", record.name, "L0", outcome, detail=problem, law=name)
        if problem:
            return


def first_device(record: PluginRecord) -> str:
    """The first device type that the card names; the CPU for one that serves every device."""
    try:
        targets = _look(Subject.of(record, "cpu"), "load").get("targets", ())
    except _EndedError:
        return "cpu"  # the checks of the plugin will say what happened
    kind = next((target for target in targets if target != "*"), "cpu")
    return kind if kind == "cpu" else f"{kind}:0"


def checks(
    contract: Contract, implementation: Implementation, settings: Settings
) -> Iterator[Check]:
    """The checks of one declaration."""

    def run(target: Target) -> Result:
        problem = declaration_problem(contract, implementation)
        outcome = Outcome.FAIL_LAW if problem else Outcome.PASS
        return Result("", target.implementation, "L0", outcome, detail=problem)

    yield Check("declaration", "L0", run, law="declaration")


def declaration_problem(contract: Contract, implementation: Implementation) -> str:
    """The first thing wrong with a declaration, ``""`` when it is fit to be examined."""
    if implementation.revision not in (contract.revision, contract.revision - 1):
        return (
            f"it was written for revision {implementation.revision} of {contract.name},"
            f" this core has {contract.revision}"
        )
    if problem := implementation.domain.outside_of(contract.domain):
        return f"its domain exceeds the contract's: {problem}"
    if unknown := sorted(implementation.claims - CLAIMS):
        return f"claim {unknown[0]!r} cannot be proved, known are {', '.join(sorted(CLAIMS))}"
    for role in ("forward", "backward", "residuals", "verifier"):
        if problem := _callable_problem(getattr(implementation, role)):
            return f"{role}: {problem}"
    return ""


def _callable_problem(target: Any) -> str:
    if target is None:
        return ""
    try:
        found = resolve(target) if isinstance(target, str) else target
    except Exception as error:
        return f"{target} cannot be loaded: {type(error).__name__}: {error}"
    return "" if callable(found) else f"{target} is a {type(found).__name__}, not a function"


def _card(look: Look, subject: Subject) -> str:
    found = look("load")
    problem = str(found.get("problem", ""))
    step = remedy(subject.distribution, found.get("requires", ())) if problem else ""
    return _judged(found, f"{problem}: {step}" if step else problem)


def _discovery(look: Look, subject: Subject) -> str:
    loaded = sorted(TOOLCHAINS.intersection(look("load").get("modules", ())))
    return f"importing {subject.target} loads {', '.join(loaded)}" if loaded else ""


def _clean(look: Look, subject: Subject) -> str:
    found = look("clean")
    if problem := found.get("problem", ""):
        return str(problem)
    changes = found.get("changes", [])
    return f"loading the plugin changes {'; '.join(changes)}" if changes else ""


def _probe(look: Look, subject: Subject) -> str:
    found = look("probe")
    return _judged(found, str(found.get("problem", "")))


def _judged(found: Mapping[str, Any], problem: str) -> str:
    """A problem of the plugin's own.

    Raises:
        _EndedError: it is one of this machine, which lacks the device or the toolchain.
    """
    if found.get("absent", False):
        raise _EndedError(Outcome.NOT_EXECUTED, problem)
    return problem


_PLUGIN_CHECKS: Mapping[str, Callable[[Look, Subject], str]] = {
    "card": _card,
    "discovery": _discovery,
    "probe": _probe,
    "clean-import": _clean,
}


def _look(subject: Subject, what: str) -> dict[str, Any]:
    """Ask a fresh interpreter.

    Raises:
        _EndedError: it gave no answer.
    """
    command = [sys.executable, "-m", "fla_conformance.fresh", what, subject.name, subject.target]
    command += [subject.device, "1" if subject.built_in else "0"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, env=child_environment()
        )
    except subprocess.TimeoutExpired:
        raise _EndedError(Outcome.TIMEOUT, f"no answer within {TIMEOUT:g} s") from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout.rpartition("\n\x1e")[2])
    except ValueError:
        raise _EndedError(Outcome.CRASH, ending(done.returncode, done.stderr)) from None
    return answer


def child_environment() -> dict[str, str]:
    """An environment whose interpreter sees the modules that this one sees, and no others."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}


def ending(code: int, errors: str) -> str:
    """How a process ended, for people."""
    if code < 0:
        return f"the process died of {signal.Signals(-code).name}"
    last = errors.strip().rpartition("\n")[2]
    return f"the process ended with status {code}" + (f" ({last})" if last else "")
