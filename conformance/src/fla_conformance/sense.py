"""What follows from a case: its features, sizes and dtypes, and whether it makes sense."""

from __future__ import annotations

from fla_conformance.case import GATES, REGIMES, Case
from fla_core.contract import TensorSpec
from fla_core.domain import AXES

SAFE_REGIMES = ("plain", "long_memory", "parallel_keys")
"""Regimes that keep the promise of a safe gate."""

NEEDS = {
    "neg_eigval": "beta_sigmoid",
    "beta_sigmoid": "beta",
    "beta_v": "beta",
    "gate": "g",
    "A_log": "gate",
    "dt_bias": "gate",
    "lower_bound": "gate",
    "initial_z": "normalize",
    "narrow_state": "initial_state",
}


def features_of(case: Case) -> frozenset[str]:
    """The features in use: those of the case, and those that follow from lengths and sizes."""
    found = set(case.features)
    if case.lengths is not None:
        found.add("varlen")
    if case.sizes.get("HV", case.sizes["H"]) != case.sizes["H"]:
        found.add("gva")
    return frozenset(found)


def sizes_of(case: Case) -> dict[str, int]:
    """Every axis letter with its size."""
    sizes = {"HV": case.sizes["H"], **case.sizes}
    sizes["N"] = case.sizes["B"] if case.lengths is None else len(case.lengths)
    return {axis: sizes[axis] for axis in AXES}


def is_present(spec: TensorSpec, features: frozenset[str]) -> bool:
    """Whether a call with these features has an argument."""
    return not spec.optional or spec.name in features


def dtypes_of(case: Case) -> dict[str, str]:
    """Dtype name of each tensor argument that is there."""
    features = features_of(case)
    present = (spec for spec in case.definition.inputs if is_present(spec, features))
    return {spec.name: dtype_of(spec, case, features) for spec in present}


def dtype_of(spec: TensorSpec, case: Case, features: frozenset[str]) -> str:
    """Dtype name of one tensor argument."""
    if spec.dtype == "activation":
        return case.dtype
    wide = "float64" if case.dtype == "float64" else "float32"
    if spec.name in GATES and case.gate_dtype != "float32":
        return case.gate_dtype
    if spec.name != "initial_state" or "narrow_state" not in features:
        return wide
    if case.dtype in ("float16", "bfloat16"):
        return case.dtype
    return "float32" if case.dtype == "float64" else "bfloat16"


def may_be_safe(case: Case) -> bool:
    """Whether every log gate of the case lies in [-5, 0) for sure."""
    bounded = "gate" not in case.features or "lower_bound" in case.features
    return bounded and case.regime in SAFE_REGIMES


def contradiction(case: Case) -> str:
    """Why nobody could make this call, whatever the implementation; ``""`` when it can be made."""
    contract, features, options = case.definition, features_of(case), case.options or {}
    if unknown := sorted(features.difference(contract.features)):
        return f"{contract.name} has no feature {unknown[0]!r}"
    if unknown := sorted(set(options).difference(contract.options, {"scale"})):
        return f"{contract.name} has no option {unknown[0]!r}"
    if case.regime not in REGIMES:
        return f"regime must be {' | '.join(REGIMES)}, got {case.regime!r}"
    for feature, needed in NEEDS.items():
        known = needed in contract.features
        if feature in features and known and needed not in features:
            return f"feature {feature!r} needs {needed!r}"
    if "gate" in features and not features & {"A_log", "lower_bound"}:
        return "feature 'gate' needs 'A_log' (or 'lower_bound')"
    if "lower_bound" in contract.options and ("lower_bound" in features) != (
        "lower_bound" in options
    ):
        return "feature 'lower_bound' and option lower_bound go together"
    if "states" in features and case.direction == "bwd":
        return "feature 'states' is inference only"
    for derived in ("varlen", "gva"):
        if derived in case.features and derived not in features_of(case.but(features=frozenset())):
            return f"feature {derived!r} follows from lengths and sizes, which do not have it"
    return _fields_contradict(case) or _form_contradicts(case, features)


def _fields_contradict(case: Case) -> str:
    if case.lengths is not None and (case.sizes["B"], case.sizes["T"]) != (1, sum(case.lengths)):
        return "packed sequences lie in one row: B must be 1 and T the sum of the lengths"
    if case.safe_gate and not may_be_safe(case):
        regimes = " | ".join(SAFE_REGIMES)
        return f"a safe gate needs regime {regimes}, and lower_bound where there is 'gate'"
    if case.gradients is not None and not (case.direction == "bwd" and case.gradients):
        return "gradients are those that a backward case wants, at least one of them"
    if unknown := sorted((case.gradients or frozenset()).difference(dtypes_of(case))):
        return f"there is no argument {unknown[0]!r} to have a gradient"
    return ""


def _form_contradicts(case: Case, features: frozenset[str]) -> str:
    # The chunked names of GDN take g and beta as required arguments.
    if case.contract == "gated_delta_rule" and case.form == "chunk":
        for name in ("g", "beta"):
            if name not in features:
                return f"the chunk form needs {name!r}"
    return ""
