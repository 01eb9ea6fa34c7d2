"""May this candidate serve this call? One function a stage; the first refusal counts."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from fla_core.contract import Contract
from fla_core.dispatch import validity
from fla_core.dispatch.candidates import Candidate
from fla_core.dispatch.lowered import Fit
from fla_core.dispatch.policy import Item, Rule
from fla_core.plugins.api import Probe
from fla_core.plugins.record import PluginRecord
from fla_core.verify import OK, CallView, Reason, Verdict, run_verifier

Step = tuple[str, Verdict]


def plugin_steps(record: PluginRecord, item: Item, rule: Rule, device_type: str) -> Iterator[Step]:
    """Stages that concern a plugin as a whole, before it is asked about the device."""
    yield "availability", _availability(record)
    yield "enablement", _enablement(record, rule)
    yield "device", _device(record, device_type)
    yield "toolchain", _toolchain(record, item)


def _availability(record: PluginRecord) -> Verdict:
    # What a probe said of one device does not count for another; that is a later stage.
    unusable = record.failure is not None or record.unavailable
    return Verdict(Reason.STATE, record.summary()) if unusable and not record.rule else OK


def _enablement(record: PluginRecord, rule: Rule) -> Verdict:
    if record.rule:
        return Verdict(Reason.POLICY, record.rule)
    return Verdict(Reason.POLICY, f"-{record.name}") if record.name in rule.excluded else OK


def _device(record: PluginRecord, device_type: str) -> Verdict:
    if record.serves(device_type) or record.backend is None:
        return OK
    return Verdict(Reason.DEVICE, "device", " | ".join(record.backend.targets), device_type)


def _toolchain(record: PluginRecord, item: Item) -> Verdict:
    has = "" if record.backend is None else record.backend.toolchain
    if item.toolchain in ("", has):
        return OK
    return Verdict(Reason.TOOLCHAIN, "toolchain", item.toolchain, has)


def probe_verdict(probe: Probe) -> Verdict:
    """What the answer to a probe means for a call."""
    return OK if probe.ok else Verdict(Reason.STATE, f"unavailable: {probe.reason}")


def candidate_steps(
    contract: Contract, candidate: Candidate, fitted: Fit, probe: Probe, hypothetical: bool = False
) -> Iterator[Step]:
    """Stages that concern one implementation.

    Args:
        contract: what is computed.
        candidate: who might compute it.
        fitted: how.
        probe: the plugin's answer for the device.
        hypothetical: no call is made, and facts that are not given become conditions.
    """
    raw, view, domain = fitted.raw, fitted.view, candidate.domain
    if hypothetical:
        yield from (("condition", Verdict(Reason.OK, text)) for text in conditions(candidate, view))
        domain = candidate.decidable(view)
    if raw.arch or not hypothetical:
        yield "arch", _arch(candidate.implementation.arch, raw.arch)
    yield "revision", _revision(contract, candidate.implementation.revision)
    yield "gradients", _gradients(candidate, fitted)
    directions = ("forward", "backward") if raw.gradients else ("forward",)
    rows = candidate.record.validity
    yield (
        "validity",
        validity.check(rows, candidate.identity, directions, raw.arch, probe.versions),
    )
    yield "domain", domain.check(view)
    if not (hypothetical and candidate.unknown(view)):
        yield "verifier", _verifier(candidate, view)


def conditions(candidate: Candidate, view: CallView) -> Iterator[str]:
    """What would have to hold of facts that are not given."""
    implementation, unknown = candidate.implementation, candidate.unknown(view)
    if implementation.arch and not view.arch:
        yield f"only if arch is {' | '.join(implementation.arch)}"
    for axis, allowed in candidate.domain.axes.items():
        if axis in unknown:
            yield f"only if {axis} is {allowed}"
    for relation in candidate.domain.relations:
        if unknown.intersection(relation.axes):
            yield f"only if {relation}"
    if implementation.verifier is not None and unknown:
        yield f"only if its verifier agrees, which reads {', '.join(sorted(unknown))}"


def _arch(patterns: tuple[str, ...], arch: str) -> Verdict:
    if not patterns or any(fnmatchcase(arch, pattern) for pattern in patterns):
        return OK
    return Verdict(Reason.ARCH, "arch", " | ".join(patterns), arch or "unknown")


def _revision(contract: Contract, revision: int) -> Verdict:
    if contract.revision - 1 <= revision <= contract.revision:
        return OK
    want = f"{contract.revision} or {contract.revision - 1}"
    return Verdict(Reason.CONTRACT, "revision", want, str(revision))


def _gradients(candidate: Candidate, fitted: Fit) -> Verdict:
    implementation, wanted = candidate.implementation, fitted.raw.gradients
    if not wanted:
        return OK
    if implementation.backward is None:
        return Verdict(Reason.GRAD, "forward only; gradients are wanted")
    if implementation.gradients is None:
        return OK
    needed = fitted.view.gradients
    if needed != wanted:
        # The gradient of an argument that a lowering consumes comes out of those of the arguments
        # it feeds; which they are is the lowering's business, so all of them must be there.
        needed = frozenset(fitted.view.dtypes)
    missing = sorted(needed - implementation.gradients)
    return Verdict(Reason.GRAD, f"no gradient of {', '.join(missing)}") if missing else OK


def _verifier(candidate: Candidate, view: CallView) -> Verdict:
    if candidate.implementation.verifier is None:
        return OK
    verifier = candidate.function("verifier")
    if verifier is None:
        return Verdict(Reason.STATE, candidate.record.summary())
    return run_verifier(verifier, view)
