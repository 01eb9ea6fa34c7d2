"""Calls that leave an implementation's declared domain in a single respect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from fla_conformance.case import Case
from fla_conformance.fitting import Fitting
from fla_conformance.reach import axis_range, forms_of, required, view_of
from fla_conformance.sense import NEEDS, contradiction, features_of, sizes_of
from fla_core.contract import Contract
from fla_core.domain import AxisRange, Relation
from fla_core.plugins.api import Implementation


@dataclass(frozen=True, slots=True)
class Violation:
    """A call that leaves a domain in one respect.

    Attributes:
        case: the call.
        subject: what is wrong with it, ``"K=65"``.
    """

    case: Case
    subject: str


def outside(contract: Contract, implementation: Implementation) -> Iterator[Violation]:
    """Minimal violations of an implementation's domain that its contract allows."""
    base = plainest(contract, implementation)
    if base is None:
        return
    seen = set()
    for case, subject in (
        *_dtypes(base, implementation),
        *_sizes(base, implementation),
        *_relations(base, implementation),
        *_forbidden(base, implementation),
        *_missing(base, implementation),
        *_gradients(base, implementation),
    ):
        case = case.but(features=features_of(case))
        allowed = not contradiction(case) and contract.domain.check(view_of(case)).ok
        if allowed and subject not in seen:
            seen.add(subject)
            yield Violation(case, subject)


def plainest(contract: Contract, implementation: Implementation) -> Case | None:
    """The plainest call that is declared; None when nothing near it is."""
    form = next(iter(implementation.forms), "")
    form = form if form in forms_of(contract.name) else forms_of(contract.name)[0]
    features = required(contract, implementation.domain)
    if contract.name == "gated_delta_rule" and form == "chunk":
        features |= {"g", "beta"}
    sizes = {"B": 1, "T": 16, "H": 1, "HV": 1, "K": 16, "V": 16}
    dtype = implementation.domain.dtypes[0]
    case = Case(contract.name, "fwd", dtype, form, sizes, features - {"varlen", "gva"})
    if "varlen" in features:
        case = case.but(lengths=(16,))
    return Fitting(implementation).fit(case)


def _dtypes(base: Case, implementation: Implementation) -> Iterator[tuple[Case, str]]:
    for dtype in base.definition.domain.dtypes:
        if dtype not in implementation.domain.dtypes:
            yield base.but(dtype=dtype), dtype


def _sizes(base: Case, implementation: Implementation) -> Iterator[tuple[Case, str]]:
    for axis, allowed in implementation.domain.axes.items():
        widest = axis_range(base.definition, base.definition.domain, axis)
        for size in _just_outside(allowed):
            if size >= 0 and size in widest:
                yield _resized(base, {axis: size}, implementation), f"{axis}={size}"


def _just_outside(allowed: AxisRange) -> list[int]:
    """Sizes beside those that are allowed: below, above, between."""
    sizes = list(allowed.choices) or list(allowed.sizes(allowed.low + 4 * allowed.multiple_of))
    if allowed.high is not None:
        sizes.append(allowed.high - allowed.high % allowed.multiple_of)
    beside = {size + step for size in sizes for step in (-1, 1)}
    return sorted(size for size in beside if size not in allowed)


def _resized(base: Case, sizes: dict[str, int], implementation: Implementation) -> Case:
    grouped = implementation.domain.presence("gva") != "forbidden"
    sizes = dict(sizes)
    if "N" in sizes and base.lengths is None:
        sizes["B"] = sizes["N"]
    if "H" in sizes:
        sizes.setdefault("HV", sizes["H"])
    elif "HV" in sizes and not grouped:
        sizes["H"] = sizes["HV"]
    count = sizes.pop("N", None)
    case = base.but(sizes={**base.sizes, **sizes})
    if base.lengths is not None:
        tokens = case.sizes["T"]
        number = max(count if count is not None else len(base.lengths), 0)
        case = case.but(lengths=(tokens, *[0] * (number - 1)) if number else ())
    return case


def _relations(base: Case, implementation: Implementation) -> Iterator[tuple[Case, str]]:
    for relation in implementation.domain.relations:
        if relation in base.definition.domain.relations:
            continue
        for sizes in _breaking(relation, base, implementation):
            case = _resized(base, sizes, implementation)
            if not relation.holds(sizes_of(case)):
                yield case, f"not {relation}"
                break


def _breaking(
    relation: Relation, base: Case, implementation: Implementation
) -> Iterator[dict[str, int]]:
    """Sizes within their ranges that break a relation, small ones first."""
    few = []
    for axis in relation.axes:
        allowed = axis_range(base.definition, implementation.domain, axis)
        high = max(64, allowed.low, *allowed.choices, relation.limit + 1)
        usual = [n for n in allowed.sizes(min(high, 4096)) if n]
        few.append(sorted({*usual[:8], *usual[-8:]}))
    for sizes in sorted(product(*few), key=sum):
        named = dict(zip(relation.axes, sizes, strict=True))
        if not relation.holds(named):
            yield named


def _forbidden(base: Case, implementation: Implementation) -> Iterator[tuple[Case, str]]:
    """Features that are not served and that no lowering takes away."""
    contract, domain = base.definition, implementation.domain
    lowered = {name for lowering in contract.lowerings for name in lowering.features}
    for name in contract.features:
        if domain.presence(name) != "forbidden" or name in lowered:
            continue
        features = base.features | ({name} - {"varlen", "gva"})
        while more := {NEEDS[n] for n in features if n in NEEDS} & set(contract.features):
            if more <= features:
                break
            features |= more
        case = base.but(features=features)
        if name == "varlen":
            case = case.but(lengths=(case.sizes["T"],), sizes={**case.sizes, "B": 1})
        if name == "gva":
            case = case.but(sizes={**case.sizes, "HV": 2 * case.sizes["H"]})
        yield case, name


def _missing(base: Case, implementation: Implementation) -> Iterator[tuple[Case, str]]:
    for name in sorted(required(base.definition, implementation.domain)):
        case = base.but(features=base.features - {name})
        if name == "varlen":
            case = case.but(lengths=None)
        if name == "gva":
            case = case.but(sizes={**case.sizes, "HV": case.sizes["H"]})
        yield case, f"no {name}"


def _gradients(base: Case, implementation: Implementation) -> Iterator[tuple[Case, str]]:
    given = implementation.gradients
    wanted = set(view_of(base.but(direction="bwd")).dtypes)
    if implementation.backward is None or (given is not None and not wanted <= given):
        yield base.but(direction="bwd"), "gradients"
