"""The oracle itself against the written definition: one head, one token, one product at a time.

The oracle shares the definitions of features (normalised keys, gates, reversed walks, ...) with the
code it judges. Here they are written out again from their formulas, without anything shared.
"""

from __future__ import annotations

import math

import pytest
import torch
from op_cases import DELTA, Case, fixed_decay, gold_call, make_inputs
from op_compare import assert_exact
from test_op_numerics import CASES, STATE
from torch import Tensor

STATES_CASE = Case(
    "chunk_kda", ("beta", *STATE), ("final_state", "states", "state_v_first"), T=70, HV=4
)


def softplus(x: Tensor) -> Tensor:
    return torch.where(x > 20, x, (1 + x.exp()).log())


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


class Sequence:
    """One sequence of one value head: reads the arguments of a token, features applied."""

    def __init__(self, case: Case, x: dict[str, Tensor], index: int, head: int) -> None:
        self.case, self.x, self.head, self.index = case, x, head, index
        self.key_head = head // (case.value_heads // case.H)
        self.row, self.tokens = case.sequences[index]

    def unit(self, x: Tensor) -> Tensor:
        if "l2norm" not in self.case.flags:
            return x
        return x / math.sqrt(sum(float(e) ** 2 for e in x) + 1e-6)

    def q(self, t: int) -> Tensor:
        return self.unit(self.x["q"][self.row, t, self.key_head])

    def k(self, t: int) -> Tensor:
        return self.unit(self.x["k"][self.row, t, self.key_head])

    def v(self, t: int) -> Tensor:
        return self.x["v"][self.row, t, self.head]

    def decay(self, t: int) -> Tensor:
        """The factor on each entry of the state, ``[K, V]``."""
        case, log = self.case, torch.zeros(self.case.K, self.case.V, dtype=torch.float64)
        fixed = fixed_decay(case)
        if fixed is not None:
            log = log + fixed[self.head]
        if "g_gamma" in self.x:
            log = log + self.x["g_gamma"][self.head]
        if "g" in self.x:
            g = self.activated(self.x["g"][self.row, t, self.head])
            log = log + (g[:, None] if g.dim() else g)
        if "gk" in self.x:
            log = log + self.x["gk"][self.row, t, self.head][:, None]
        if "gv" in self.x:
            log = log + self.x["gv"][self.row, t, self.head][None, :]
        return log.exp()

    def activated(self, logits: Tensor) -> Tensor:
        case, head = self.case, self.head
        if "gate" not in case.flags:
            return logits
        if "dt_bias" in self.x:
            bias = self.x["dt_bias"]
            mine = bias[head * case.K : (head + 1) * case.K] if logits.dim() else bias[head]
            logits = logits + mine
        rate = self.x["A_log"][head].exp() if "A_log" in self.x else 1.0
        if case.lower_bound is not None:
            return case.lower_bound * sigmoid(rate * logits)
        return -rate * softplus(logits)

    def beta(self, t: int) -> Tensor | float:
        if "beta" not in self.x:
            return 1.0
        beta = self.x["beta"][self.row, t, self.head]
        if "beta_sigmoid" in self.case.flags:
            beta = sigmoid(beta)
        return 2 * beta if "neg_eigval" in self.case.flags else beta

    def strength(self, name: str, t: int) -> Tensor:
        return self.x[name][self.row, t, self.head]

    def initial(self) -> Tensor:
        if "initial_state" not in self.x:
            return torch.zeros(self.case.K, self.case.V, dtype=torch.float64)
        state = self.x["initial_state"][self.index, self.head]
        return state.T if "state_v_first" in self.case.flags else state

    def stored(self, state: Tensor) -> Tensor:
        return state.T if "state_v_first" in self.case.flags else state


def by_definition(case: Case, x: dict[str, Tensor]) -> dict[str, Tensor]:
    """Outputs, straight from the equations."""
    s, scale = case.sizes, case.K**-0.5 if case.scale is None else case.scale
    o = torch.zeros(s["B"], s["T"], s["HV"], s["V"], dtype=torch.float64)
    v_first = "state_v_first" in case.flags
    shape = (s["V"], s["K"]) if v_first else (s["K"], s["V"])
    final = torch.zeros(s["N"], s["HV"], *shape, dtype=torch.float64)
    normaliser = torch.zeros(s["N"], 1, s["HV"], s["K"], dtype=torch.float64)
    kept: dict[tuple[int, int], list[Tensor]] = {}
    for index, head in ((i, h) for i in range(s["N"]) for h in range(s["HV"])):
        seq = Sequence(case, x, index, head)
        state = seq.initial()
        z = x["initial_z"][index, 0, head] if "initial_z" in x else torch.zeros(case.K)
        tokens = list(range(seq.tokens.start, seq.tokens.stop))
        for step, t in enumerate(reversed(tokens) if "reverse" in case.flags else tokens):
            if step % (case.chunk_size or 64) == 0:
                kept.setdefault((index, head), []).append(seq.stored(state))
            state = state * seq.decay(t)
            value = seq.v(t)
            if case.contract == "gdn2":
                value = seq.strength("w", t) * value - (seq.strength("b", t) * seq.k(t)) @ state
            elif case.contract in DELTA:
                value = seq.beta(t) * (value - seq.k(t) @ state)
            state = state + seq.k(t)[:, None] * value[None, :]
            z = z + seq.k(t)
            read = scale * (seq.q(t) @ state)
            if "normalize" in case.flags:
                read = read / (scale * (seq.q(t) @ z) + 1e-10)
            o[seq.row, t, head] = read
        final[index, head] = seq.stored(state)
        normaliser[index, 0, head] = z
    outputs = {"o": o}
    if "final_state" in case.flags and not case.parallel:
        outputs["final_state"] = final
    if "normalize" in case.flags:
        outputs["final_z"] = normaliser
    if "states" in case.flags:
        rows = [
            torch.stack([torch.stack(kept[i, h]) for h in range(s["HV"])], 1) for i in range(s["N"])
        ]
        outputs["states"] = torch.stack(rows)
    return outputs


@pytest.mark.parametrize(
    "case", [*CASES.values(), STATES_CASE], ids=[*CASES, "states before chunks"]
)
def test_the_oracle_is_the_definition(case: Case) -> None:
    inputs = make_inputs(case)
    assert_exact(gold_call(case, inputs), by_definition(case, inputs), tolerance=1e-12)
