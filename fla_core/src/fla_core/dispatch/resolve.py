"""From a policy and a call to one implementation, with every refusal on record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from fla_core.contract import Contract
from fla_core.dispatch import assess
from fla_core.dispatch.assess import Step
from fla_core.dispatch.candidates import Candidate, Known
from fla_core.dispatch.decision import Considered, Decision
from fla_core.dispatch.governing import Governing, governing_rule, ordered_plugins
from fla_core.dispatch.lowered import Fit, fit
from fla_core.dispatch.policy import AUTOMATIC, Item
from fla_core.dispatch.runtime import Runtime
from fla_core.errors import FlaError, ImplementationError, NoImplementationError, PluginLoadError
from fla_core.plugins.api import Probe
from fla_core.plugins.probe import probe
from fla_core.plugins.record import PluginRecord, State
from fla_core.verify import OK, CallView, Reason, Verdict


@dataclass(frozen=True, slots=True)
class Request:
    """One call to be placed.

    Attributes:
        contract: what is computed.
        operator: name the call is made under.
        device: a torch device, opaque here but for its type and index.
        view: metadata of the call; its arch is filled in from each plugin's probe.
        policy: policy text, ``""`` for that of the environment.
        hypothetical: nobody calls; facts that are not given become conditions.
        absent: why no plugin can be probed on the device; ``""`` when it can.
    """

    contract: Contract
    operator: str
    device: Any
    view: CallView
    policy: str
    hypothetical: bool = False
    absent: str = ""


@dataclass(slots=True)
class Search:
    """One walk through the candidates, and what was found so far."""

    runtime: Runtime
    request: Request
    governing: Governing
    known: Known
    considered: list[Considered] = field(default_factory=list)
    reached: list[PluginRecord] = field(default_factory=list)
    chosen: Candidate | None = None
    fit: Fit | None = None

    def passes(self, name: str, steps: Iterator[Step]) -> bool:
        """Record refusals and remarks; True when nothing refuses."""
        for stage, verdict in steps:
            if not verdict.ok or verdict.subject:
                self.considered.append((name, stage, verdict))
            if not verdict.ok:
                return False
        return True

    @property
    def fell_back(self) -> bool:
        """True when the reference was taken without having been asked for."""
        chosen = self.chosen
        built_in = chosen is not None and chosen.record.built_in
        return built_in and not self.governing.names_reference

    def decision(self) -> Decision:
        """The outcome."""
        request, chosen = self.request, self.chosen
        view = request.view if self.fit is None else self.fit.raw
        return Decision(
            operator=request.operator,
            contract=request.contract.name,
            revision=request.contract.revision,
            view=view,
            policy=self.governing.text,
            origin=self.governing.origin,
            chosen=None if chosen is None else chosen.identity,
            considered=tuple(self.considered),
            plan="" if chosen is None or self.fit is None else _plan(chosen.identity, self.fit),
            not_asked=tuple(self._not_asked()),
        )

    def _not_asked(self) -> Iterator[tuple[str, str]]:
        for record in self.runtime.registry:
            if record in self.reached:
                continue
            if self.chosen is not None and self.governing.rule.open:
                yield record.name, "an earlier one accepts"
            elif record.name in self.governing.rule.excluded:
                yield record.name, f"the policy says -{record.name}"
            else:
                slow = " (slow)" if record.built_in else ""
                yield record.name, f"add ',{record.name}' to the policy to allow it{slow}"


def _plan(identity: str, fitted: Fit) -> str:
    names = ", ".join(lowering.name for lowering in fitted.lowerings)
    return f"{identity} (lowered: {names})" if names else identity


def search(runtime: Runtime, request: Request) -> Search:
    """Walk the candidates in order until one accepts.

    Raises:
        PolicyError: the policy cannot be understood.
        ImplementationError: a verifier of a plugin that a closed policy names is faulty.
    """
    known = runtime.contract(request.contract)
    governing = governing_rule(runtime, request.contract.name, request.operator, request.policy)
    state = Search(runtime, request, governing, known)
    for record, item in ordered_plugins(runtime.registry, governing.rule):
        state.reached.append(record)
        _ask(state, record, item)
        if state.chosen is not None:
            break
    return state


def bind(runtime: Runtime, request: Request, identity: str) -> tuple[Search, Candidate, Fit]:
    """Place a call on the implementation that its forward ran with.

    Raises:
        LookupError: no plugin that is loaded has such an implementation.
        PluginLoadError: its functions cannot be imported.
    """
    known = runtime.contract(request.contract)
    chosen = next((c for c in known.candidates if c.identity == identity), None)
    if chosen is None:
        raise LookupError(f"no loaded plugin has the implementation {identity!r}")
    if not _load(chosen).ok:
        raise PluginLoadError(chosen.record)
    governing = Governing(AUTOMATIC, chosen.record.name, "the choice of forward")
    fitted = fit(request.contract, chosen.implementation.domain, request.view)
    state = Search(runtime, request, governing, known, chosen=chosen, fit=fitted)
    return state, chosen, fitted


def _ask(state: Search, record: PluginRecord, item: Item) -> None:
    request, rule = state.request, state.governing.rule
    about_plugin = assess.plugin_steps(record, item, rule, request.device.type)
    if not state.passes(record.name, about_plugin):
        return
    mine = [candidate for candidate in state.known.candidates if candidate.record is record]
    if not mine:
        nothing = Verdict(Reason.CONTRACT, f"no implementation of {request.contract.name}")
        state.considered.append((record.name, "availability", nothing))
        return
    answer, remark = _probed(state, record)
    if not state.passes(record.name, iter([("probe", remark)])):
        return
    form = request.view.form
    for candidate in sorted(mine, key=lambda c: form not in c.implementation.forms):
        raw = replace(request.view, arch=answer.arch or request.view.arch)
        fitted = fit(request.contract, candidate.implementation.domain, raw)
        if state.passes(candidate.identity, _about(state, candidate, fitted, answer)):
            state.considered.append((candidate.identity, "accepted", OK))
            state.chosen, state.fit = candidate, fitted
            return


def _probed(state: Search, record: PluginRecord) -> tuple[Probe, Verdict]:
    request = state.request
    if request.absent and not record.built_in:
        remark = f"would be asked; not probed here ({request.absent})"
        return Probe(True, arch=request.view.arch), Verdict(Reason.OK, remark)
    answer = probe(record, request.device, state.runtime.probe_timeout)
    if record.failure is not None:
        return answer, Verdict(Reason.STATE, record.summary())
    return answer, assess.probe_verdict(answer)


def _about(state: Search, candidate: Candidate, fitted: Fit, answer: Probe) -> Iterator[Step]:
    request = state.request
    hypothetical = request.hypothetical
    steps = assess.candidate_steps(request.contract, candidate, fitted, answer, hypothetical)
    for stage, verdict in steps:
        if verdict.code is Reason.INTERNAL:
            _report_fault(state, candidate, verdict)
        yield stage, verdict
    if not hypothetical:
        yield "load", _load(candidate)


def _report_fault(state: Search, candidate: Candidate, verdict: Verdict) -> None:
    note = f"{candidate.identity}: {verdict.subject}"
    if note not in candidate.record.notes:
        candidate.record.notes.append(note)
    if not (state.governing.rule.open or state.request.hypothetical):
        raise ImplementationError(candidate.identity, verdict.subject)


def _load(candidate: Candidate) -> Verdict:
    for role in ("forward", "backward", "residuals", "pooled"):
        candidate.function(role)
    failure = candidate.record.failure
    return OK if failure is None else Verdict(Reason.STATE, candidate.record.summary())


def no_implementation(state: Search) -> FlaError:
    """The error for a call nobody accepts; its cause is that of the first broken plugin."""
    broken = [record for record in state.reached if record.state is State.BROKEN]
    error: FlaError = NoImplementationError(state.decision())
    if broken and len(state.reached) == 1 and not state.governing.rule.open:
        error = PluginLoadError(broken[0])
    if broken and broken[0].failure is not None:
        error.__cause__ = broken[0].failure.cause
    return error
