"""Loading one plugin inside a guard: whatever it does wrong stays with its own record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import pluggy

from fla_core.contracts import CONTRACTS
from fla_core.plugins import hookspecs, validate
from fla_core.plugins.api import Loadable
from fla_core.plugins.record import PluginRecord
from fla_core.plugins.requirements import unmet
from fla_core.plugins.torch_state import TorchState

GUARDED = BaseException
"""What a plugin may raise without stopping the process: besides SystemExit, a panic of a Rust
extension is no Exception either. An interrupt by the user must be let through before."""


class _Problem(Exception):
    """A finding about a plugin, in words meant for its author."""


def load(record: PluginRecord) -> None:
    """Import the plugin, ask its hooks and write the answers, or what went wrong, to the record."""
    with record.lock:
        if record.backend is not None or record.failure or record.unavailable or record.rule:
            return
        guarded(record, lambda: _ask(record, _register(record)))


def load_callable(record: PluginRecord, target: Loadable | None) -> Any:
    """Import what an implementation names; None, and a broken plugin, when that fails."""
    if not isinstance(target, str):
        return target
    return guarded(record, lambda: resolve(target))


def guarded(record: PluginRecord, action: Callable[[], Any]) -> Any:
    """Run code of a plugin; an error or a change of torch's state breaks the plugin, not us."""
    before, result = TorchState.take(), None
    try:
        result = action()
    except _Problem as problem:
        record.breaks("load", str(problem))
    except KeyboardInterrupt:
        raise
    except GUARDED as error:
        record.breaks("load", describe(error), error)
    if before is None:
        before = TorchState.fresh()
    if before is not None and (changed := before.restore()):
        record.breaks("load", f"changed torch: {', '.join(changed)}")
    return result


def describe(error: BaseException) -> str:
    """Type and message of an error, in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _register(record: PluginRecord) -> Any:
    module = record.module or resolve(record.target)
    # A manager of its own makes roll-back trivial: a plugin that fails is simply not kept.
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(module, name=record.name)
    manager.check_pending()
    record.module, record.hooks = module, manager.hook
    return manager.hook


def resolve(target: str) -> Any:
    """Import ``"module"`` or ``"module:attribute.attribute"``."""
    path, _, attributes = target.partition(":")
    found: Any = import_module(path)
    for name in filter(None, attributes.split(".")):
        found = getattr(found, name)
    return found


def _ask(record: PluginRecord, hooks: Any) -> None:
    answers = hooks.fla_backend()
    if not answers:
        raise _Problem("it has no fla_backend() hook (decorate it with fla_core.plugins.hookimpl)")
    card = answers[0]
    _require(validate.card_problem(card, record.name))
    # Kept whatever comes next: the card says whose calls are affected when the rest is broken.
    record.backend = card
    implementations = tuple(_items(hooks.fla_implementations(), "fla_implementations"))
    for item in implementations:
        problem = validate.implementation_problem(
            item, CONTRACTS.get(getattr(item, "contract", ""))
        )
        _require(problem, f"implementation {_label(record, item)}: ")
    _require(validate.duplicate_variant(implementations))
    rows = tuple(_items(hooks.fla_validity(), "fla_validity"))
    for row in rows:
        _require(validate.validity_problem(row, record.name), "validity: ")
    record.notes += [
        f"this core has no contract {item.contract!r}; {_label(record, item)} is unused"
        for item in implementations
        if item.contract not in CONTRACTS
    ]
    record.unavailable = unmet(card.requires)
    record.implementations, record.validity = implementations, rows


def _items(answers: list[Any], hook: str) -> Iterable[Any]:
    for answer in answers:
        if not isinstance(answer, Iterable) or isinstance(answer, str):
            raise _Problem(f"{hook}() must return an iterable, got {type(answer).__name__}")
        yield from answer


def _label(record: PluginRecord, item: Any) -> str:
    contract, variant = getattr(item, "contract", "?"), getattr(item, "variant", "?")
    return f"{record.name}:{contract}#{variant}"


def _require(problem: str, prefix: str = "") -> None:
    if problem:
        raise _Problem(prefix + problem)
