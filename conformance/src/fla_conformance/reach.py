"""What an implementation says it takes: its declared domain, asked about a case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from fla_conformance.case import Case
from fla_conformance.inputs import contradiction, features_of
from fla_core.contract import Contract, TensorSpec
from fla_core.contracts import CONTRACTS
from fla_core.dispatch.candidates import Candidate
from fla_core.dispatch.lowered import fit
from fla_core.dispatch.runtime import RUNTIME
from fla_core.domain import AXES, AxisRange, Domain
from fla_core.plugins.api import Implementation
from fla_core.verify import CallView, Reason, Verdict, run_verifier

DERIVED = frozenset({"varlen", "gva", "narrow_state"})
"""Features that follow from lengths, sizes or dtypes rather than from a name in a case."""


def candidate_of(identity: str) -> Candidate:
    """The loaded implementation ``plugin:contract#variant``.

    Raises:
        LookupError: no loaded plugin has it.
    """
    name = identity.partition(":")[2].partition("#")[0]
    found = RUNTIME.contract(CONTRACTS[name]).candidates if name in CONTRACTS else ()
    for candidate in found:
        if candidate.identity == identity:
            return candidate
    has = ", ".join(candidate.identity for candidate in found) or "none"
    raise LookupError(f"no loaded plugin has the implementation {identity!r}; there are: {has}")


def sizes_of(case: Case) -> dict[str, int]:
    """Every axis letter with its size."""
    sizes = {"HV": case.sizes["H"], **case.sizes}
    sizes["N"] = case.sizes["B"] if case.lengths is None else len(case.lengths)
    return {axis: sizes[axis] for axis in AXES}


def dtypes_of(case: Case) -> dict[str, str]:
    """Dtype name of each tensor argument that is there, as the suite draws them."""
    features = features_of(case)
    present = (s for s in case.definition.inputs if not s.optional or s.name in features)
    return {spec.name: _dtype(spec, case, features) for spec in present}


def _dtype(spec: TensorSpec, case: Case, features: frozenset[str]) -> str:
    if spec.dtype == "activation":
        return case.dtype
    wide = "float64" if case.dtype == "float64" else "float32"
    if spec.name != "initial_state" or "narrow_state" not in features:
        return wide
    if case.dtype in ("float16", "bfloat16"):
        return case.dtype
    return "float32" if case.dtype == "float64" else "bfloat16"


def view_of(case: Case, device: str = "cpu", arch: str = "") -> CallView:
    """The metadata of a case's call, as verifiers see it."""
    dtypes = dtypes_of(case)
    return CallView(
        contract=case.contract,
        form=case.form,
        device=device,
        arch=arch,
        dtype=case.dtype,
        dtypes=dtypes,
        axes=sizes_of(case),
        features=features_of(case),
        gradients=frozenset(dtypes) if case.direction == "bwd" else frozenset(),
    )


def fits(case: Case, implementation: Implementation) -> Verdict:
    """Whether a declaration takes a case, with core's lowerings around it; no verifier is asked.

    Gradients of all inputs count as wanted in a backward case. Dispatch is not asked either, so
    this is what dispatch is compared with.
    """
    contract = case.definition
    if problem := contradiction(case):
        return Verdict(Reason.CONTRACT, problem)
    view = view_of(case)
    outside = contract.domain.check(view)
    if not outside.ok:
        return outside
    fitted = fit(contract, implementation.domain, view)
    if case.direction == "bwd":
        if implementation.backward is None:
            return Verdict(Reason.GRAD, "forward only; gradients are wanted")
        given = implementation.gradients
        missing = sorted(set(fitted.view.dtypes) - given) if given is not None else []
        if missing:
            return Verdict(Reason.GRAD, f"no gradient of {', '.join(missing)}")
    return implementation.domain.check(fitted.view)


def declared(case: Case, candidate: Candidate, device: str = "cpu", arch: str = "") -> Verdict:
    """:func:`fits`, and the verifier of an implementation agrees."""
    implementation = candidate.implementation
    verdict = fits(case, implementation)
    if not verdict.ok or implementation.verifier is None:
        return verdict
    verifier = candidate.function("verifier")
    if verifier is None:
        return Verdict(Reason.STATE, candidate.record.summary())
    view = fit(case.definition, implementation.domain, view_of(case, device, arch)).view
    seen = RUNTIME.contract(case.definition).axes(_ONES)
    return run_verifier(verifier, replace(view, axes={axis: view.axes[axis] for axis in seen}))


_ONES = (1,) * len(AXES)


def takes(contract: Contract, domain: Domain, features: frozenset[str]) -> bool:
    """Whether a domain takes these features, itself or behind lowerings."""
    _, after = contract.lowerings_for(features, domain)
    return all(domain.presence(name) != "forbidden" for name in after) and all(
        name in after for name, presence in domain.features.items() if presence == "required"
    )


def required(contract: Contract, domain: Domain) -> frozenset[str]:
    """Features without which the domain takes nothing, and which core does not fill in."""
    filled = {name for low in contract.lowerings if low.when_absent for name in low.features}
    needed = {name for name, presence in domain.features.items() if presence == "required"}
    return frozenset(needed - filled)


def optional(contract: Contract, domain: Domain) -> Iterator[str]:
    """Features that a call may have beyond those that are required."""
    base = required(contract, domain)
    for name in contract.features:
        if name not in base and takes(contract, domain, base | {name}):
            yield name


def axis_range(contract: Contract, domain: Domain, axis: str) -> AxisRange:
    """The sizes of an axis that the declared domain names, or else the contract."""
    return domain.axes.get(axis) or contract.domain.axes.get(axis) or AxisRange()


@cache
def forms_of(contract: str) -> tuple[str, ...]:
    """Forms under which a contract has public names."""
    return tuple(dict.fromkeys(form for _, form in CONTRACTS[contract].public))
