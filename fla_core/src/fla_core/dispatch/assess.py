"""May this candidate serve this call? One function a stage, the first refusal counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from fla_core.contract import Contract, Lowering
from fla_core.dispatch import validity
from fla_core.dispatch.candidates import Candidate
from fla_core.dispatch.policy import Item, Rule
from fla_core.plugins.api import Probe
from fla_core.plugins.record import PluginRecord, State
from fla_core.verify import OK, CallView, Reason, Verdict, run_verifier

Step = tuple[str, Verdict]


@dataclass(frozen=True, slots=True)
class Fit:
    """How a candidate would serve a call: lowerings around it and the call it then sees."""

    lowerings: tuple[Lowering, ...]
    view: CallView


def plugin_steps(record: PluginRecord, item: Item, rule: Rule, device_type: str) -> Iterator[Step]:
    """Stages that concern a plugin as a whole, before it is asked about the device."""
    yield "availability", _availability(record)
    yield "enablement", _enablement(record, rule)
    yield "device", _device(record, device_type)
    yield "toolchain", _toolchain(record, item)


def _availability(record: PluginRecord) -> Verdict:
    if record.state in (State.BROKEN, State.UNAVAILABLE) and not record.probes:
        return Verdict(Reason.STATE, record.summary())
    return Verdict(Reason.STATE, record.summary()) if record.failure else OK


def _enablement(record: PluginRecord, rule: Rule) -> Verdict:
    if record.rule:
        return Verdict(Reason.POLICY, record.rule)
    if record.name in rule.excluded:
        return Verdict(Reason.POLICY, f"-{record.name}")
    return OK


def _device(record: PluginRecord, device_type: str) -> Verdict:
    if record.serves(device_type):
        return OK
    assert record.backend is not None
    return Verdict(Reason.DEVICE, "device", "|".join(record.backend.targets), device_type)


def _toolchain(record: PluginRecord, item: Item) -> Verdict:
    assert record.backend is not None
    has = record.backend.toolchain
    if item.toolchain in ("", has):
        return OK
    return Verdict(Reason.TOOLCHAIN, "toolchain", item.toolchain, has)


def probe_verdict(probe: Probe) -> Verdict:
    """What the answer to a probe means for a call."""
    return OK if probe.ok else Verdict(Reason.STATE, f"unavailable: {probe.reason}")


def candidate_steps(
    contract: Contract, candidate: Candidate, fit: Fit, raw: CallView, probe: Probe
) -> Iterator[Step]:
    """Stages that concern one implementation."""
    implementation = candidate.implementation
    yield "arch", _arch(implementation.arch, raw.arch)
    yield "revision", _revision(contract, implementation.revision)
    yield "gradients", _gradients(contract, candidate, fit, raw)
    directions = ("forward", "backward") if raw.gradients else ("forward",)
    rows = candidate.record.validity
    args = (rows, candidate.identity, directions, raw.arch, probe.versions)
    yield "validity", validity.check(*args)
    yield "domain", candidate.domain.check(fit.view)
    yield "verifier", _verifier(candidate, fit.view)


def _arch(patterns: tuple[str, ...], arch: str) -> Verdict:
    if not patterns or any(fnmatchcase(arch, pattern) for pattern in patterns):
        return OK
    return Verdict(Reason.ARCH, "arch", "|".join(patterns), arch or "unknown")


def _revision(contract: Contract, revision: int) -> Verdict:
    if contract.revision - 1 <= revision <= contract.revision:
        return OK
    want = f"{contract.revision} or {contract.revision - 1}"
    return Verdict(Reason.CONTRACT, "revision", want, str(revision))


def _gradients(contract: Contract, candidate: Candidate, fit: Fit, raw: CallView) -> Verdict:
    implementation = candidate.implementation
    if not raw.gradients:
        return OK
    if implementation.backward is None:
        return Verdict(Reason.GRAD, "backward", "no gradients", "gradients wanted")
    if implementation.gradients is None:
        return OK
    needed = fit.view.gradients
    if needed != raw.gradients:
        # The gradient of an argument that a lowering consumes comes out of those of the arguments
        # it feeds; which they are is the lowering's business, so all of them must be there.
        consumed = {name for lowering in fit.lowerings for name in lowering.consumes}
        needed = frozenset(contract.input_names) - consumed
        needed = frozenset(n for n in needed if n in fit.view.dtypes)
    missing = sorted(needed - implementation.gradients)
    if not missing:
        return OK
    return Verdict(Reason.GRAD, f"no gradient of {', '.join(missing)}")


def _verifier(candidate: Candidate, view: CallView) -> Verdict:
    if candidate.implementation.verifier is None:
        return OK
    verifier = candidate.function("verifier")
    if verifier is None:
        return Verdict(Reason.STATE, candidate.record.summary())
    return run_verifier(verifier, view)


def fit(contract: Contract, candidate: Candidate, view: CallView) -> Fit:
    """Choose the lowerings and the call that the implementation then sees."""
    lowerings, features = contract.lowerings_for(view.features, candidate.implementation.domain)
    if not lowerings:
        return Fit((), view)
    consumed = {name for lowering in lowerings for name in lowering.consumes}
    dtypes = {name: dtype for name, dtype in view.dtypes.items() if name not in consumed}
    for lowering in lowerings:
        if lowering.when_absent:
            dtypes[lowering.features[0]] = "float32"
    lowered: dict[str, Any] = {
        "features": features,
        "axes": _lowered_axes(view, features),
        "dtypes": dtypes,
        "gradients": view.gradients - consumed,
    }
    return Fit(lowerings, replace(view, **lowered))


def _lowered_axes(view: CallView, features: frozenset[str]) -> dict[str, int | None]:
    axes = dict(view.axes)
    if "gva" in view.features - features and "H" in axes:
        axes["H"] = axes["HV"]
    return axes
