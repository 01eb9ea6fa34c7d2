"""From a policy and a call to one implementation, with every refusal on record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from fla_core.contract import Contract
from fla_core.dispatch import assess, candidates, context
from fla_core.dispatch.assess import Fit, Step
from fla_core.dispatch.candidates import Candidate
from fla_core.dispatch.decision import Considered, Decision
from fla_core.dispatch.policy import AUTOMATIC, Item, Rule, parse
from fla_core.dispatch.runtime import Runtime
from fla_core.errors import (
    FlaError,
    ImplementationError,
    NoImplementationError,
    PluginLoadError,
    UnknownBackendError,
)
from fla_core.plugins.discover import REFERENCE
from fla_core.plugins.probe import probe
from fla_core.plugins.record import PluginRecord, State
from fla_core.verify import OK, CallView, Reason, Verdict

_REFERENCE_ITEM = Item("reference", REFERENCE)


@dataclass(frozen=True, slots=True)
class Request:
    """One call to be placed; ``device`` is a torch device, opaque here but for type and index."""

    contract: Contract
    operator: str
    device: Any
    view: CallView
    policy: str


@dataclass(frozen=True, slots=True)
class Governing:
    """The rule in force for a call, the policy it stands in and who set that."""

    rule: Rule
    text: str
    origin: str


@dataclass(slots=True)
class Search:
    """The state of one resolution."""

    runtime: Runtime
    request: Request
    governing: Governing
    considered: list[Considered] = field(default_factory=list)
    reached: list[PluginRecord] = field(default_factory=list)

    def note(self, candidate: str, step: Step) -> bool:
        """Record a refusal; True when the candidate may go on."""
        stage, verdict = step
        if not verdict.ok:
            self.considered.append((candidate, stage, verdict))
        return verdict.ok

    def decision(self, chosen: Candidate | None = None, lowered: Fit | None = None) -> Decision:
        """The decision as it stands."""
        request = self.request
        asked = {record.name for record in self.reached}
        return Decision(
            operator=request.operator,
            contract=request.contract.name,
            revision=request.contract.revision,
            view=request.view if lowered is None else replace(request.view, arch=lowered.view.arch),
            policy=self.governing.text,
            origin=self.governing.origin,
            chosen=None if chosen is None else chosen.identity,
            considered=tuple(self.considered),
            plan="" if chosen is None or lowered is None else plan_text(chosen.identity, lowered),
            not_asked=tuple(
                (record.name, self._why_not_asked(record, chosen))
                for record in self.runtime.registry
                if record.name not in asked
            ),
        )

    def _why_not_asked(self, record: PluginRecord, chosen: Candidate | None) -> str:
        if chosen is not None and (record.built_in or self.governing.rule.open):
            return "an earlier one accepts"
        hint = " (slow)" if record.built_in else ""
        return f"the policy does not name it; add ',{record.name}' to allow it{hint}"


def plan_text(identity: str, lowered: Fit) -> str:
    """``acme:kda#chunk (lowered: l2norm, state_v_first)``."""
    names = ", ".join(lowering.name for lowering in lowered.lowerings)
    return f"{identity} (lowered: {names})" if names else identity


def governing_rule(runtime: Runtime, contract: str, operator: str, policy: str) -> Governing:
    """The first of: the given policy, that of the environment, automatic selection."""
    settings = runtime.settings
    sources = [(settings.backend, settings.backend_variable)]
    if policy and policy != settings.backend:
        sources.insert(
            0, (policy, context.ORIGIN if policy == context.innermost.text else "backend=")
        )
    for text, origin in sources:
        if text and (rule := parse(text, origin).rule_for(contract, operator, origin)):
            _check_names(runtime, rule, text, origin)
            return Governing(rule, text, origin)
    return Governing(AUTOMATIC, "auto", "automatic selection")


def _check_names(runtime: Runtime, rule: Rule, text: str, origin: str) -> None:
    registry = runtime.registry
    for item in rule.items:
        if item.kind == "plugin" and registry.get(item.name) is None:
            raise unknown_backend(runtime, text, origin, item.name)


def unknown_backend(runtime: Runtime, text: str, origin: str, name: str) -> UnknownBackendError:
    """The error for a plugin that is not installed, with the states of those that are."""
    import difflib

    close = difflib.get_close_matches(name, runtime.registry.names, n=1)
    states = ", ".join(f"{record.name} ({record.state.value})" for record in runtime.registry)
    hint = f"did you mean {close[0]!r}? " if close else ""
    problem = f"no backend {name!r} is installed"
    return UnknownBackendError(text, origin, problem, f"{hint}installed: {states}")


def ordered_plugins(runtime: Runtime, rule: Rule) -> Iterator[tuple[PluginRecord, Item]]:
    """Plugins in the order in which the rule asks them, each once."""
    seen: set[str] = set()
    for item in rule.items:
        if item.kind == "exclude":
            continue
        for record in _meant(runtime, item):
            # Two records may share a name; the second is broken and is still worth a line.
            if record.name not in seen:
                yield record, item
        seen.update(record.name for record in _meant(runtime, item))
    if rule.open and REFERENCE not in seen and REFERENCE not in rule.excluded:
        record = runtime.registry.get(REFERENCE)
        if record is not None:
            yield record, _REFERENCE_ITEM


def _meant(runtime: Runtime, item: Item) -> list[PluginRecord]:
    if item.kind != "auto":
        record = runtime.registry.get(item.name)
        return [] if record is None else [record]
    others = (record for record in runtime.registry if not record.built_in)
    return sorted(others, key=lambda record: (record.priority, record.name))


def search(runtime: Runtime, request: Request) -> tuple[Search, Candidate | None, Fit | None]:
    """Walk the candidates in order until one accepts."""
    governing = governing_rule(runtime, request.contract.name, request.operator, request.policy)
    state = Search(runtime, request, governing)
    for record, item in ordered_plugins(runtime, governing.rule):
        state.reached.append(record)
        found = _ask_plugin(state, record, item)
        if found is not None:
            return state, *found
    return state, None, None


def _ask_plugin(state: Search, record: PluginRecord, item: Item) -> tuple[Candidate, Fit] | None:
    request, rule = state.request, state.governing.rule
    for step in assess.plugin_steps(record, item, rule, request.device.type):
        if not state.note(record.name, step):
            return None
    mine = _implementations(state, record)
    if not mine:
        verdict = Verdict(Reason.CONTRACT, f"no implementation of {request.contract.name}")
        state.note(record.name, ("availability", verdict))
        return None
    answer = probe(record, request.device, state.runtime.probe_timeout)
    if not state.note(record.name, ("probe", assess.probe_verdict(answer))):
        return None
    for candidate in mine:
        raw = replace(request.view, arch=answer.arch)
        lowered = assess.fit(request.contract, candidate, raw)
        steps = assess.candidate_steps(request.contract, candidate, lowered, raw, answer)
        if _passes(state, candidate, steps):
            state.considered.append((candidate.identity, "accepted", OK))
            return candidate, lowered
    return None


def _implementations(state: Search, record: PluginRecord) -> list[Candidate]:
    known = state.runtime.candidates[state.request.contract.name]
    mine = [candidate for candidate in known if candidate.record is record]
    form = state.request.view.form
    return sorted(mine, key=lambda candidate: form not in candidate.implementation.forms)


def _passes(state: Search, candidate: Candidate, steps: Iterator[Step]) -> bool:
    accepted = all(state.note(candidate.identity, _judged(state, candidate, s)) for s in steps)
    return accepted and state.note(candidate.identity, ("load", load(candidate)))


def _judged(state: Search, candidate: Candidate, step: Step) -> Step:
    _, verdict = step
    if verdict.code is Reason.INTERNAL:
        candidate.record.notes.append(f"{candidate.identity}: {verdict.subject}")
        if not state.governing.rule.open:
            raise ImplementationError(candidate.identity, verdict.subject)
    return step


def load(candidate: Candidate) -> Verdict:
    """Import the functions of an implementation."""
    for role in ("forward", "backward", "residuals"):
        candidate.function(role)
    failure = candidate.record.failure
    return OK if failure is None else Verdict(Reason.STATE, candidate.record.summary())


def no_implementation(state: Search) -> FlaError:
    """The error for a call nobody accepts, with the first broken plugin as its cause."""
    broken = [record for record in state.reached if record.state is State.BROKEN]
    error: FlaError = NoImplementationError(state.decision())
    if broken and len(state.reached) == 1:
        error = PluginLoadError(broken[0])
    if broken and broken[0].failure is not None:
        error.__cause__ = broken[0].failure.cause
    return error


def prepare(runtime: Runtime, contract: Contract) -> None:
    """Load the plugins and note which implementations and axes concern a contract."""
    runtime.registry.load()
    if contract.name not in runtime.candidates:
        found = candidates.collect(contract, runtime.registry)
        runtime.candidates[contract.name] = found
        runtime.pickers[contract.name] = candidates.picker(found)
