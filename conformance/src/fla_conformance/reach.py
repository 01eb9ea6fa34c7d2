"""What an implementation says it takes: its declared domain, asked about a case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from fla_conformance.case import Case
from fla_conformance.draw import crowded
from fla_conformance.sense import contradiction, dtypes_of, features_of, sizes_of
from fla_core.contract import Contract
from fla_core.contracts import CONTRACTS
from fla_core.dispatch.candidates import Candidate
from fla_core.dispatch.lowered import Fit, fit
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


def wanting(case: Case, implementation: Implementation) -> Case:
    """A backward case that wants the gradients which an implementation offers.

    Of an implementation that offers none of them nothing is wanted, and nothing fits.
    """
    offered = implementation.gradients
    if case.direction == "fwd" or offered is None:
        return case
    present = frozenset(dtypes_of(case))
    return case.but(gradients=None if present <= offered else present & offered)


def view_of(case: Case, device: str = "cpu", arch: str = "") -> CallView:
    """The metadata of a case's call, as verifiers see it."""
    dtypes = dtypes_of(case)
    wanted = frozenset(dtypes) if case.direction == "bwd" else frozenset()
    return CallView(
        contract=case.contract,
        form=case.form,
        device=device,
        arch=arch,
        dtype=case.dtype,
        dtypes=dtypes,
        axes=sizes_of(case),
        features=features_of(case),
        gradients=wanted if case.gradients is None else wanted & case.gradients,
    )


def fits(case: Case, implementation: Implementation) -> Verdict:
    """Whether a declaration takes a case, with core's lowerings around it; no verifier is asked.

    Dispatch is not asked either, so this is what dispatch is compared with.
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
        if missing := _missing_gradients(fitted, implementation.gradients):
            return Verdict(Reason.GRAD, f"no gradient of {', '.join(missing)}")
    return implementation.domain.check(fitted.view)


def vanishes(case: Case) -> bool:
    """Whether a gradient of the case is zero for a reason of structure, in a whole block.

    A normalised vector of one channel is a sign, and the first output of a normaliser that starts
    from nothing is the first value, whatever q and k are. What arithmetic leaves of such a
    gradient is the dust of terms that cancel; the spread, which is zero, is no unit for it.
    Forward nothing cancels.
    """
    if case.direction == "fwd":
        return False
    if case.sizes["K"] == 1 and case.features & {"normalize", "l2norm"}:
        return True
    lengths = (case.sizes["T"],) if case.lengths is None else case.lengths
    return "normalize" in case.features and "initial_z" not in case.features and 1 in lengths


def cancels(case: Case) -> bool:
    """Whether too little is left of what a chunk adds up for its error to say anything."""
    longest = case.sizes["T"] if case.lengths is None else max(case.lengths, default=0)
    return vanishes(case) or crowded(case.contract, longest, case.sizes["K"])


def _missing_gradients(fitted: Fit, offered: frozenset[str] | None) -> list[str]:
    if offered is None:
        return []
    needed = fitted.view.gradients
    if needed != fitted.raw.gradients:  # what a lowering consumed gets its gradient from the others
        needed = frozenset(fitted.view.dtypes)
    return sorted(needed - offered)


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


def optional(contract: Contract, domain: Domain, dtype: str = "") -> Iterator[str]:
    """Features that a call may have beyond those that are required.

    Args:
        contract: what is implemented.
        domain: the declared one.
        dtype: of q; a lowering may leave it in one that is not served. ``""`` for any.
    """
    base = required(contract, domain)
    for name in contract.features:
        with_it = base | {name}
        if name in base or not takes(contract, domain, with_it):
            continue
        if not dtype or _dtype_behind(contract, domain, with_it, dtype) in domain.dtypes:
            yield name


def _dtype_behind(contract: Contract, domain: Domain, features: frozenset[str], dtype: str) -> str:
    """The dtype of q that an implementation sees."""
    sizes = dict.fromkeys(("B", "T", "H", "HV", "K", "V"), 1)
    case = Case(contract.name, "fwd", dtype, contract.public[0][1], sizes, features - DERIVED)
    return fit(contract, domain, view_of(case)).view.dtype


def axis_range(contract: Contract, domain: Domain, axis: str) -> AxisRange:
    """The sizes of an axis that the declared domain names, or else the contract."""
    return domain.axes.get(axis) or contract.domain.axes.get(axis) or AxisRange()


@cache
def forms_of(contract: str) -> tuple[str, ...]:
    """Forms under which a contract has public names."""
    return tuple(dict.fromkeys(form for _, form in CONTRACTS[contract].public))
