"""What is not a number, or not in the domain, stays where it was put."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from op_cases import Case, make_inputs, public_call
from op_compare import evaluate, make_weights
from torch import Tensor

STATE = ("initial_state",)
PACKED = (4, 18, 0, 7)
CASES = {
    "linear": Case("chunk_linear_attn", STATE),
    "normalised": Case("fused_recurrent_linear_attn", STATE, ("final_state", "normalize")),
    "simple_gla": Case("chunk_simple_gla", ("g", *STATE)),
    "simple_gla reversed": Case(
        "fused_recurrent_simple_gla", ("g", *STATE), ("final_state", "reverse")
    ),
    "retention": Case("chunk_retention", STATE),
    "gla": Case("chunk_gla", ("gk", *STATE)),
    "gla recurrent": Case("fused_recurrent_gla", ("gk", "gv", *STATE)),
    "delta": Case("chunk_delta_rule", ("beta", *STATE), ("final_state", "l2norm")),
    "gdn": Case("chunk_gdn", ("g", "beta", *STATE), HV=4),
    "gdn recurrent": Case("fused_recurrent_gdn", ("g", "gv", "beta", *STATE)),
    "kda": Case(
        "chunk_kda", ("beta", "A_log", *STATE), ("final_state", "gate", "beta_sigmoid"), HV=4
    ),
    "kda recurrent": Case(
        "fused_recurrent_kda", ("beta_v", *STATE), ("final_state", "state_v_first")
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
SHARED = ("A_log",)


def poisoned(case: Case, name: str, x: Tensor) -> Tensor:
    """NaN somewhere in the second sequence."""
    row, tokens = case.sequences[1]
    x = x.clone()
    if name == "initial_state":
        x[1, 0, 0, 0] = math.nan
    else:
        x[row, tokens.start + 1] = math.nan
    return x


@every_case
@pytest.mark.parametrize("lens", [None, PACKED], ids=["dense", "packed"])
def test_nan_stays_in_its_sequence(case: Case, lens: tuple[int, ...] | None) -> None:
    """In outputs and in gradients, whichever argument brings it."""
    case = replace(case, lens=lens, dtype=torch.float32, B=3)
    clean = make_inputs(case)
    weights = make_weights(case, public_call(case, clean))
    want = evaluate(public_call, case, clean, weights=weights)
    for name in clean:
        if name in SHARED:
            continue
        bad = clean | {name: poisoned(case, name, clean[name])}
        got = evaluate(public_call, case, bad, weights=weights)
        row, tokens = case.sequences[1]
        assert got["o"][row, tokens].isnan().any(), name
        for i, (other, span) in enumerate(case.sequences):
            if i == 1:
                continue
            for key in got.keys() - {f"d{shared}" for shared in SHARED}:
                place = (i,) if "state" in key or key.endswith("_z") else (other, span)
                assert torch.equal(got[key][place], want[key][place]), (name, key)


@every_case
def test_nan_spares_what_comes_before(case: Case) -> None:
    """Every earlier token in the recurrent form, every earlier chunk of 64 in the chunk form."""
    case = replace(case, T=80, dtype=torch.float32)
    clean = make_inputs(case)
    want = public_call(case, clean)["o"]
    chunk = slice(0, 64) if case.op.startswith("chunk_") else slice(0, 70)
    before = slice(71, None) if "reverse" in case.flags else chunk
    for name in clean.keys() - {"initial_state", *SHARED}:
        bad = clean[name].clone()
        bad[:, 70] = math.nan
        got = public_call(case, clean | {name: bad})["o"]
        assert torch.equal(got[:, before], want[:, before]), name
        assert got[:, 70].isnan().any(), name


@every_case
@pytest.mark.parametrize("value", [math.inf, -math.inf, 3.0, 1e30], ids=str)
def test_values_outside_the_domain_do_not_crash(case: Case, value: float) -> None:
    case = replace(case, dtype=torch.float32)
    clean = make_inputs(case)
    for name, x in clean.items():
        wild = x.clone()
        wild.view(-1)[::7] = value
        got = evaluate(public_call, case, clean | {name: wild})
        assert got["o"].shape == clean["v"].shape
        assert got[f"d{name}"].shape == x.shape


@pytest.mark.parametrize("name", ["simple_gla", "gla", "gla recurrent", "gdn", "kda recurrent"])
def test_a_log_gate_of_minus_infinity_is_a_reset(name: str) -> None:
    """It is what -1e4 is: nothing of the past is left, and no NaN appears."""
    case = CASES[name]
    inputs = make_inputs(case)
    gate = "gk" if "gk" in inputs else "g"
    found = []
    for closed in (-1e4, -math.inf):
        values = inputs[gate].clone()
        values[:, 7] = closed
        found.append(evaluate(public_call, case, inputs | {gate: values}))
    finite, infinite = found
    for key, want in finite.items():
        assert torch.equal(infinite[key], want), key
