"""Checks of what a plugin says about itself. Each returns the first problem, or ``""``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from fla_core.contract import Contract
from fla_core.domain import Domain
from fla_core.plugins.api import PLUGIN_API, Backend, Implementation, Validity
from fla_core.plugins.requirements import parse_requirement

RESERVED = ("auto", "none", "reference")
NAME = re.compile(r"[a-z][a-z0-9_]*(-[a-z0-9_]+)*")
VARIANT = re.compile(r"[A-Za-z0-9_.-]+")
TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def name_problem(name: str) -> str:
    """Check a plugin name."""
    if name in RESERVED:
        return f"the name {name!r} is reserved ({', '.join(RESERVED)})"
    if not NAME.fullmatch(name):
        return f"the name {name!r} must be lower-case letters, digits, '_' or '-'"
    return ""


def card_problem(card: Any, name: str) -> str:
    """Check the answer of ``fla_backend()`` against the name of its entry point."""
    if not isinstance(card, Backend):
        return f"fla_backend() must return a Backend, got {type(card).__name__}"
    if type(card.api) is not int:
        return f"Backend.api must be an int, got {card.api!r}"
    if card.api != PLUGIN_API:
        side = "fla-kernels-core" if card.api > PLUGIN_API else "the plugin"
        return (
            f"it is written for plugin API {card.api}, this core has {PLUGIN_API}: upgrade {side}"
        )
    if card.name != name:
        return f"Backend.name is {card.name!r}, its entry point is named {name!r}"
    return _card_fields(card)


def _card_fields(card: Any) -> str:
    for field in ("targets", "requires"):
        value = getattr(card, field)
        if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
            return f"Backend.{field} must be a tuple of strings, got {value!r}"
    if not card.targets:
        return "Backend.targets must name at least one device type, got ()"
    for field in ("toolchain", "description"):
        if not isinstance(getattr(card, field), str):
            return f"Backend.{field} must be a string, got {getattr(card, field)!r}"
    if not NAME.fullmatch(card.toolchain):
        return f"Backend.toolchain must be a lower-case name, got {card.toolchain!r}"
    if type(card.priority) is not int:
        return f"Backend.priority must be an int, got {card.priority!r}"
    for text in card.requires:
        if isinstance(problem := parse_requirement(text), str):
            return f"Backend.requires: {problem}"
    return ""


def implementation_problem(item: Any, contract: Contract | None) -> str:
    """Check one implementation; ``contract`` is None when this core does not know it."""
    if not isinstance(item, Implementation):
        return f"fla_implementations() must yield Implementation, got {type(item).__name__}"
    problem = _implementation_fields(item)
    if problem or contract is None or item.revision != contract.revision:
        return problem
    if outside := item.domain.outside_of(contract.domain):
        return f"domain: {outside}"
    letters = set(contract.domain.axes)
    if unknown := sorted((item.domain.constrained_axes() | set(item.reads)) - letters):
        return (
            f"{contract.name} has no axis {unknown[0]!r}; it has {', '.join(contract.domain.axes)}"
        )
    known = set(contract.input_names)
    if unknown := sorted((item.gradients or frozenset()) - known):
        return f"gradients: {contract.name} has no input {unknown[0]!r}"
    return ""


def _implementation_fields(item: Any) -> str:
    if type(item.revision) is not int:
        return f"revision must be an int, got {item.revision!r}"
    if not isinstance(item.variant, str) or not VARIANT.fullmatch(item.variant):
        return f"variant must be letters, digits, '_', '.' or '-', got {item.variant!r}"
    if not isinstance(item.domain, Domain):
        return f"domain must be a Domain, got {type(item.domain).__name__}"
    for field, optional in (
        ("forward", False),
        ("backward", True),
        ("residuals", True),
        ("verifier", True),
        ("pooled", True),
    ):
        value = getattr(item, field)
        if value is None and optional:
            continue
        if not callable(value) and not (isinstance(value, str) and TARGET.fullmatch(value)):
            return f"{field} must be a callable or 'module:function', got {value!r}"
    for field in ("forms", "arch", "reads"):
        value = getattr(item, field)
        if not isinstance(value, tuple) or not all(isinstance(entry, str) for entry in value):
            return f"{field} must be a tuple of strings, got {value!r}"
    if item.gradients is not None and not isinstance(item.gradients, frozenset):
        return f"gradients must be None or a frozenset of names, got {item.gradients!r}"
    return ""


def duplicate_variant(items: Iterable[Implementation]) -> str:
    """Name the first ``contract#variant`` declared twice."""
    seen: set[tuple[str, str]] = set()
    for item in items:
        if (key := (item.contract, item.variant)) in seen:
            return f"{item.contract}#{item.variant} is declared twice"
        seen.add(key)
    return ""


def validity_problem(row: Any, plugin: str) -> str:
    """Check one row of a validity table; a plugin speaks of its own implementations only."""
    if not isinstance(row, Validity):
        return f"fla_validity() must yield Validity, got {type(row).__name__}"
    if row.implementation.partition(":")[0] not in (plugin, "*"):
        return f"a validity row must be about {plugin}:..., got {row.implementation!r}"
    if row.direction not in ("forward", "backward", "*"):
        return f"direction must be forward, backward or *, got {row.direction!r}"
    if row.status not in ("ok", "denied", "unverified"):
        return f"status must be ok, denied or unverified, got {row.status!r}"
    if row.status != "ok" and not row.reason:
        return f"a row that is {row.status} needs a reason"
    if row.toolchain not in ("", "*") and isinstance(p := parse_requirement(row.toolchain), str):
        return f"toolchain: {p}"
    return ""
