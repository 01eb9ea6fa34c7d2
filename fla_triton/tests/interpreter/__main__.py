"""Judge cases in Triton's interpreter, a JSON line each: ``python -m interpreter``.

A process of its own, since Triton decides on import whether it interprets. Each line of its input
is ``[case, multiprocessors, as_declared]``; more multiprocessors make a plan cut time into
segments, and what is not as every backend declares it is normalised by the kernels themselves.
"""

# ruff: noqa: T201

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from importlib import import_module
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

from fla_conformance.case import Case
from fla_conformance.inputs import Inputs
from fla_core.contracts import CONTRACTS
from fla_triton.declared import NORMALISED, SERVED, Row
from fla_triton.profiles import PROFILES, Profile
from fla_triton.serve import Kernels
from interpreter.lowered import differentiated
from interpreter.shims import install
from judging import Tensors, judged, poison_memory


def row_of(contract: str, features: frozenset[str] = frozenset()) -> Row:
    """A contract as every backend declares it: the first row that takes the features, or the first.

    Features that the core lowers count as taken.
    """
    rows = [row for row in SERVED if row.contract == contract]

    def takes(row: Row) -> bool:
        _, left = CONTRACTS[contract].lowerings_for(features, row.domain())
        return left.issuperset(row.required) and left <= {*row.features, *row.required}

    return next(filter(takes, rows), rows[0])


def kernels_for(contract: str, profile: Profile) -> Kernels:
    """Kernels of the family that serves a contract."""
    module: Any = import_module(f"fla_triton.{row_of(contract).family}")
    kernels: Kernels = module.Kernels(profile)
    return kernels


def answer(inputs: Inputs, kernels: Kernels, row: Row | None = None) -> Tensors:
    """Outputs, and the gradients that the case asks for, in poisoned memory.

    Args:
        inputs: of a case.
        kernels: what answers.
        row: what they take as it is; as every backend declares it if None.
    """
    call = inputs.call()
    row = row or row_of(inputs.case.contract, call.features)
    lowerings, _ = call.contract.lowerings_for(call.features, row.domain())
    if lowerings:
        return differentiated(inputs, kernels, lowerings)
    outputs, residuals = kernels.forward(call, bool(inputs.grads))
    found = dict(zip(inputs.output_names, outputs, strict=True))
    if inputs.grads:
        grads = [inputs.grads[name] for name in inputs.output_names]
        needs = frozenset(inputs.wanted)
        derived = kernels.backward(call, residuals, grads, needs)
        found |= {f"d{name}": value for name, value in derived.items()}
    return found


def main() -> None:
    """Judge every case of the input as it comes."""
    poison_memory()
    install()
    for line in sys.stdin:
        data, multiprocessors, as_declared = json.loads(line)
        case = Case.from_json(data)
        profile = replace(PROFILES["sm90"], multiprocessors=multiprocessors)

        row = None if as_declared else NORMALISED

        def on_chip(inputs: Inputs, profile: Profile = profile, row: Row | None = row) -> Tensors:
            return answer(inputs, kernels_for(inputs.case.contract, profile), row)

        failure, margins = judged(case, on_chip)
        print(json.dumps({"id": case.id, "failure": failure, "margins": margins}), flush=True)


if __name__ == "__main__":
    main()
