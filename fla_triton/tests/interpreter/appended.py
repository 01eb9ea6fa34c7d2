"""What appended tokens change of the outputs before them: ``python -m interpreter.appended``.

A JSON line for every case and form: by length of a shorter call, the largest difference of its
outputs from those of the longest, over the largest output.
"""

# ruff: noqa: T201

from __future__ import annotations

import json
import os
from dataclasses import replace

os.environ["TRITON_INTERPRET"] = "1"

from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.inputs import Inputs, make_inputs
from fla_triton.profiles import PROFILES
from fla_triton.serve import Kernels
from interpreter.__main__ import kernels_for
from interpreter.cases import FILLS, IDLE, case
from interpreter.shims import install
from judging import poison_memory

LONGEST = 140
LENGTHS = (1, 16, 17, 33, 64, 65, 100)
CASES = (
    ("simple_gla", ("g",), FILLS),
    ("gla", ("gk",), FILLS),
    ("delta_rule", ("beta",), FILLS),
    ("gated_delta_rule", ("g", "beta"), FILLS),
    ("gated_delta_rule", ("g", "beta"), IDLE),
    ("kda", (), FILLS),
    ("kda", (), IDLE),
)
"""Contracts, their features, and multiprocessors, of which many make delta rules run in stages."""


def outputs_of(inputs: Inputs, tokens: int, kernels: Kernels) -> Tensor:
    """Outputs of the first tokens alone."""
    kept: dict[str, Tensor | None] = dict.fromkeys(inputs.tensors)
    for name, tensor in inputs.present.items():
        letters = inputs.letters(f"d{name}")
        kept[name] = tensor
        if "T" in letters:
            kept[name] = tensor.narrow(letters.index("T"), 0, tokens).contiguous()
    (o, *_), _ = kernels.forward(inputs.call_with(kept), False)
    return o


def differences(one: Case, multiprocessors: int) -> dict[int, float]:
    """Of every length, how far its outputs are from those of the longest call."""
    profile = replace(PROFILES["sm90"], multiprocessors=multiprocessors)
    inputs, kernels = make_inputs(one), kernels_for(one.contract, profile)
    whole = outputs_of(inputs, LONGEST, kernels).double()
    found = {}
    for tokens in LENGTHS:
        o = outputs_of(inputs, tokens, kernels).double()
        found[tokens] = float((o - whole[:, :tokens]).abs().max() / whole.abs().max())
    return found


def main() -> None:
    """Compare every case."""
    poison_memory()
    install()
    for contract, features, multiprocessors in CASES:
        for dtype in ("bfloat16", "float32"):
            one = case(contract, dtype, (1, LONGEST, 1, 16, 16), features, direction="fwd")
            found = differences(one, multiprocessors)
            answer = {"case": one.id, "multiprocessors": multiprocessors, "differences": found}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
