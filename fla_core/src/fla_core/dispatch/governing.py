"""Which rule governs a call, and in which order it asks the plugins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fla_core.dispatch import context
from fla_core.dispatch.policy import AUTOMATIC, Item, Policy, Rule, parse
from fla_core.dispatch.runtime import Runtime
from fla_core.dispatch.settings import misspelt
from fla_core.errors import UnknownBackendError
from fla_core.plugins.discover import REFERENCE
from fla_core.plugins.record import PluginRecord
from fla_core.plugins.registry import Registry

_LAST_RESORT = Item("reference", REFERENCE)


@dataclass(frozen=True, slots=True)
class Governing:
    """The rule in force for a call, the policy it stands in and who set that."""

    rule: Rule
    text: str
    origin: str

    @property
    def names_reference(self) -> bool:
        """True when the user asked for the reference; its use is then no surprise."""
        return any(item.kind == "reference" for item in self.rule.items)


def governing_rule(runtime: Runtime, contract: str, operator: str, policy: str) -> Governing:
    """The rule of the first level that has one: those of ``policy``, the environment's, automatic.

    Raises:
        PolicyError: a policy cannot be read, or two of its rules fit equally well.
        UnknownBackendError: it names a plugin that is not installed.
    """
    settings = runtime.settings
    levels = [] if policy == settings.backend else context.levels_of(policy)
    if settings.backend:
        levels.append((settings.backend, settings.backend_variable))
    for text, origin in levels:
        parsed = parse(text, origin)
        check_names(parsed, runtime.registry, origin)
        if (rule := parsed.rule_for(contract, operator, origin)) is not None:
            return Governing(rule, text, origin)
    return Governing(AUTOMATIC, "auto", "automatic selection")


def check_names(policy: Policy, registry: Registry, origin: str) -> None:
    """Raise UnknownBackendError for a plugin that is not installed.

    One that is only kept out (``-name``) need not be, unless it looks misspelt.
    """
    for rule in policy.rules:
        for item in rule.items:
            if item.kind not in ("plugin", "exclude") or registry.get(item.name) is not None:
                continue
            close = misspelt(item.name, registry.names)
            if item.kind == "exclude" and not close:
                continue
            states = ", ".join(f"{record.name} ({record.state.value})" for record in registry)
            hint = (
                f"did you mean {close!r}? installed: {states}" if close else f"installed: {states}"
            )
            problem = f"no backend {item.name!r} is installed"
            raise UnknownBackendError(policy.text, origin, problem, hint)


def ordered_plugins(registry: Registry, rule: Rule) -> Iterator[tuple[PluginRecord, Item]]:
    """Plugins in the order in which the rule asks them, each once."""
    seen: set[tuple[int, str]] = set()
    last_resort = [_LAST_RESORT] if rule.open and REFERENCE not in rule.excluded else []
    for item in (*rule.items, *last_resort):
        for record in _meant(registry, item, rule):
            if (key := (id(record), item.toolchain)) not in seen:
                seen.add(key)
                yield record, item


def _meant(registry: Registry, item: Item, rule: Rule) -> list[PluginRecord]:
    if item.kind == "exclude":
        return []
    if item.kind != "auto":
        record = registry.get(item.name)
        return [] if record is None else [record]
    # A plugin that the rule names elsewhere has its place there.
    named = {other.name for other in rule.items if other.kind == "plugin"}
    others = (r for r in registry if not r.built_in and r.name not in named)
    return sorted(others, key=lambda record: (record.priority, record.name))
