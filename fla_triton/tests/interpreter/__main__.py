"""Judge cases in Triton's interpreter, a JSON line each: ``python -m interpreter``.

A process of its own, since Triton decides on import whether it interprets. Each line of its input
is ``[case, multiprocessors]``; more multiprocessors make a plan cut time into segments.
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
from fla_triton.declared import ROWS
from fla_triton.profiles import PROFILES, Profile
from fla_triton.serve import Kernels
from interpreter.lowered import differentiated
from interpreter.shims import correct_bfloat16, watch_bounds
from judging import Tensors, judged, poison_memory


def kernels_for(contract: str, profile: Profile) -> Kernels:
    """Kernels of the family that serves a contract."""
    family = next(row.family for row in ROWS if row.contract == contract)
    module: Any = import_module(f"fla_triton.{family}")
    kernels: Kernels = module.Kernels(profile)
    return kernels


def answer(inputs: Inputs, kernels: Kernels) -> Tensors:
    """Outputs, and the gradients that the case asks for, in poisoned memory."""
    call = inputs.call()
    row = next(row for row in ROWS if row.contract == inputs.case.contract)
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
    correct_bfloat16()
    watch_bounds()
    for line in sys.stdin:
        data, multiprocessors = json.loads(line)
        case = Case.from_json(data)
        profile = replace(PROFILES["sm90"], multiprocessors=multiprocessors)

        def on_chip(inputs: Inputs, profile: Profile = profile) -> Tensors:
            return answer(inputs, kernels_for(inputs.case.contract, profile))

        failure, margins = judged(case, on_chip)
        print(json.dumps({"id": case.id, "failure": failure, "margins": margins}), flush=True)


if __name__ == "__main__":
    main()
