"""Run cases in Triton's interpreter and print a JSON line each: ``python -m interpreter FILE``.

A process of its own, since Triton decides on import whether it interprets. The file holds a list
of ``[case, multiprocessors]``; more multiprocessors make a plan cut time into segments.
"""

# ruff: noqa: T201

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch

from fla_conformance.case import Case
from fla_conformance.gold import gold
from fla_conformance.inputs import Inputs, make_inputs
from fla_conformance.numerics import judge
from fla_triton.profiles import PROFILES
from fla_triton.scalar_decay import Kernels
from interpreter.shims import correct_bfloat16, watch_bounds


def answer(inputs: Inputs, kernels: Kernels) -> dict[str, torch.Tensor]:
    """Outputs, and gradients of every input if the case asks for them, in poisoned memory."""
    call = inputs.call()
    outputs, residuals = kernels.forward(call, bool(inputs.grads))
    found = dict(zip(inputs.output_names, outputs, strict=True))
    if inputs.grads:
        grads = [inputs.grads[name] for name in inputs.output_names]
        needs = frozenset(inputs.present)
        derived = kernels.backward(call, residuals, grads, needs)
        found |= {f"d{name}": value for name, value in derived.items()}
    return found


def main(path: str) -> None:
    """Judge every case of the file."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    correct_bfloat16()
    watch_bounds()
    for data, multiprocessors in json.loads(Path(path).read_text(encoding="utf-8")):
        case = Case.from_json(data)
        profile = replace(PROFILES["sm90"], multiprocessors=multiprocessors)
        try:
            judged = judge(case, answer(make_inputs(case), Kernels(profile)), gold(case))
            failure = judged.failure
            margins = {n: round(max(m.block, m.token), 3) for n, m in judged.margins.items()}
        except Exception as error:
            failure, margins = f"{type(error).__name__}: {error}", {}
        print(json.dumps({"id": case.id, "failure": failure, "margins": margins}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
