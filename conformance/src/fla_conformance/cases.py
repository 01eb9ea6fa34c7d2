"""Cases in files."""

from __future__ import annotations

import json
from pathlib import Path

from fla_conformance.case import REGIMES, Case
from fla_core.contracts import CONTRACTS
from fla_core.domain import SHORT_DTYPES
from fla_core.errors import FlaError

AXES = ("B", "T", "H", "HV", "K", "V")
"""Sizes that every case has."""


class CaseError(FlaError, ValueError):
    """A file does not hold a case that this suite can run."""

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{path} holds no case: {problem}")

    def __reduce__(self) -> tuple[type[CaseError], tuple[str, str]]:
        return type(self), (self.path, self.problem)


def read_case(path: Path) -> Case:
    """The case in a file.

    Raises:
        CaseError: it is not JSON, not a case, or of a contract that this core lacks.
    """
    try:
        case = Case.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CaseError(path.name, f"{type(error).__name__}: {error}") from error
    if problem := _problem(case):
        raise CaseError(path.name, problem)
    return case


def _problem(case: Case) -> str:
    contract = CONTRACTS.get(case.contract)
    if contract is None:
        return f"contract must be one of {', '.join(CONTRACTS)}, got {case.contract!r}"
    for name, value, words in (
        ("direction", case.direction, ("fwd", "bwd")),
        ("dtype", case.dtype, tuple(SHORT_DTYPES)),
        ("gate_dtype", case.gate_dtype, tuple(SHORT_DTYPES)),
        ("form", case.form, ("chunk", "recurrent", "parallel")),
        ("regime", case.regime, REGIMES),
    ):
        if value not in words:
            return f"{name} must be one of {', '.join(words)}, got {value!r}"
    if unknown := sorted(case.features.difference(contract.features)):
        return f"{case.contract} has no feature {unknown[0]!r}"
    if unknown := sorted((case.gradients or frozenset()).difference(contract.input_names)):
        return f"{case.contract} has no argument {unknown[0]!r}"
    return _problem_of_sizes(case)


def _problem_of_sizes(case: Case) -> str:
    sizes, lengths = case.sizes, case.lengths
    named = isinstance(sizes, dict) and sizes.keys() == set(AXES)
    numbers = (*sizes.values(), *(lengths or ())) if named else ()
    if not named or not all(type(n) is int and n >= 0 for n in numbers):
        wanted = f"sizes must be those of {', '.join(AXES)}, and with lengths numbers from 0 on"
        return f"{wanted}, got {sizes} and {lengths}"
    if lengths is not None and (sizes["B"], sizes["T"]) != (1, sum(lengths)):
        return f"with lengths B must be 1 and T their sum, got {sizes}"
    return ""
