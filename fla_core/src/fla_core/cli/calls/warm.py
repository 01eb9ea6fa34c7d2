"""The calls of ``warmup``, timed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fla_core.cli.calls.problem import Problem, base_inputs, make
from fla_core.contract import Contract
from fla_core.contracts import public_names
from fla_core.errors import ContractError

SEQUENCES = 4
"""Packed sequences under the feature ``varlen``, of equal length as far as T allows."""


@dataclass(frozen=True, slots=True)
class Warmed:
    """One shape: what serves it, and seconds of the first and of the second call."""

    sizes: Mapping[str, int]
    plan: str
    first: float
    second: float

    @property
    def text(self) -> str:
        """``B=1 T=64 H=2 K=64 V=64``."""
        return " ".join(f"{axis}={size}" for axis, size in self.sizes.items())

    def to_json(self) -> dict[str, Any]:
        """The fields as plain data."""
        seconds = {"first_seconds": self.first, "second_seconds": self.second}
        return {"shape": dict(self.sizes), "plan": self.plan, **seconds}


def parse_shape(operator: str, text: str) -> dict[str, int]:
    """Read ``B,T,H,K,V``, or ``B,T,H,HV,K,V`` for an operator that knows grouped value heads.

    Raises:
        ContractError: it is neither, or a size is not positive.
    """
    contract, _ = public_names()[operator]
    parts = [part.strip() for part in text.split(",")]
    forms: list[tuple[str, ...]] = [("B", "T", "H", "K", "V")]
    if "HV" in contract.domain.axes:
        forms.append(("B", "T", "H", "HV", "K", "V"))
    letters = next((form for form in forms if len(form) == len(parts)), None)
    if letters is None or not all(part.isdecimal() and int(part) for part in parts):
        expected = f"positive sizes {' or '.join(','.join(form) for form in forms)}"
        raise ContractError(operator, "shape", expected, repr(text))
    sizes = dict(zip(letters, map(int, parts), strict=True))
    return {axis: sizes.get(axis, sizes["H"]) for axis in forms[-1]}


def warm(
    name: str,
    sizes: Mapping[str, int],
    device: torch.device,
    dtype: torch.dtype,
    features: Sequence[str],
    grad: bool,
    backend: str | None,
) -> Warmed:
    """Call an operator twice and time both.

    Raises:
        ContractError: a feature or size does not fit the operator.
        NoImplementationError: the policy leaves nobody for the call.
    """
    contract, _ = public_names()[name]
    _check_features(name, contract, features)
    flags = frozenset(features).intersection(contract.flags)
    inputs = [spec.name for spec in contract.inputs if spec.name in features]
    bounds = _bounds(name, sizes) if "varlen" in features else None
    count = sizes["B"] if bounds is None else len(bounds) - 1
    base = [arg for arg in base_inputs(name, contract) if arg != "initial_state"]
    problem = make(
        name,
        {**sizes, "N": count},
        dtype,
        device,
        optional=(*base, *inputs),
        flags=flags,
        bounds=bounds,
        grad=grad,
    )
    first, second = _timed(problem, backend), _timed(problem, backend)
    plan = problem.plan(backend).plan.decision.plan
    return Warmed(sizes, plan, first, second)


def _check_features(name: str, contract: Contract, features: Sequence[str]) -> None:
    given = {spec.name for spec in contract.inputs if spec.optional}
    takes = ("varlen", *(flag for flag in contract.flags if flag not in contract.options), *given)
    for feature in features:
        if feature not in takes:
            expected = f"some of {', '.join(sorted(takes))}"
            raise ContractError(name, "feature", expected, repr(feature))


def _bounds(name: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    if sizes["B"] != 1:
        raise ContractError(name, "shape", "B = 1 under the feature varlen", f"B = {sizes['B']}")
    count = min(SEQUENCES, sizes["T"])
    return tuple(sizes["T"] * i // count for i in range(count + 1))


def _timed(problem: Problem, backend: str | None) -> float:
    _synchronise(problem.device)
    start = time.perf_counter()
    outputs = problem.run(backend)
    if problem.trained:
        total = torch.stack([output.float().sum() for output in outputs.values()]).sum()
        torch.autograd.grad(total, [problem.present[n] for n in sorted(problem.trained)])
    _synchronise(problem.device)
    return time.perf_counter() - start


def _synchronise(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device.type).synchronize(device)
