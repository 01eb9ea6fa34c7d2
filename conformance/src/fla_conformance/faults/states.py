"""Faults in states and in the boundaries of sequences and chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from fla_conformance.faults.fault import Maths, wrong
from fla_conformance.faults.maths import (
    GATES,
    at_last,
    in_chunks,
    inside,
    present,
    recurrence,
    right,
    without,
)
from fla_core.call import Call
from fla_core.lowerings import Outputs

STATES = ("final_state", "states")


def chunked(carry: Callable[[Tensor], Tensor]) -> Maths:
    """A wrong passage from chunk to chunk; calls that ask for all states are left right."""

    def maths(call: Call) -> Outputs:
        if "states" in call.features:
            return right(call)
        return inside(call, lambda base: in_chunks(base, carry))

    return maths


def _boundaries_ignored(call: Call) -> Outputs:
    def compute(base: Call) -> Outputs:
        count = base.num_sequences
        if base.bounds is None or count < 2 or "states" in base.features:
            return recurrence(base)
        state = base.get("initial_state")
        row = replace(base, seqlens=None, features=base.features - {"varlen"})
        outputs = recurrence(row if state is None else row.but(initial_state=state[:1]))
        final = outputs["final_state"]
        return {**outputs, "final_state": final.expand(count, -1, -1, -1).contiguous()}

    return inside(call, compute)


def _with_initial(change: Callable[[Tensor], Tensor]) -> Maths:
    return lambda call: right(call.but(initial_state=change(call.initial_state)))


def _in_final(change: Callable[[Tensor, Call], Tensor]) -> Maths:
    def maths(call: Call) -> Outputs:
        outputs = right(call)
        return {**outputs, "final_state": change(outputs["final_state"], call)}

    return maths


def _transposed(state: Tensor) -> Tensor:
    """What a kernel leaves that writes [V, K] where [K, V] is read."""
    return state.mT.contiguous().view(state.shape)


def _last_token_missing(call: Call) -> Outputs:
    def compute(base: Call) -> Outputs:
        idle = {name: at_last(base, x) for name, x in present(base, ("k", *GATES)).items()}
        final = recurrence(base.but(**idle))["final_state"]
        return {**recurrence(base), "final_state": final}

    return inside(call, compute)


def _empty_forgotten(state: Tensor, call: Call) -> Tensor:
    lengths = [end - begin for begin, end in pairwise(call.bounds or ())]
    keep = torch.tensor([float(n > 0) for n in lengths], dtype=state.dtype)
    return state * keep.view(-1, 1, 1, 1)


def _layout_ignored(call: Call) -> Outputs:
    def turned(state: Tensor) -> Tensor:
        return state.contiguous().view(*state.shape[:-2], state.shape[-1], state.shape[-2])

    state = call.get("initial_state")
    plain = without(call, "state_v_first", initial_state=state if state is None else turned(state))
    outputs = right(plain)
    return {name: turned(x) if name in STATES else x for name, x in outputs.items()}


def _states_after(call: Call) -> Outputs:
    outputs = right(call)
    return {**outputs, "states": outputs["states"].roll(-1, 1)}


FAULTS = (
    wrong("state-not-carried", "each chunk of 64 starts from nothing", chunked(torch.zeros_like)),
    wrong(
        "boundaries-ignored", "states run on into the next sequence", _boundaries_ignored, "varlen"
    ),
    wrong(
        "initial-ignored",
        "the initial state is not read",
        _with_initial(torch.zeros_like),
        "initial_state",
    ),
    wrong(
        "initial-of-first",
        "every sequence starts from the first one's state",
        _with_initial(lambda state: state[:1].expand_as(state)),
        "initial_state",
    ),
    wrong(
        "initial-transposed",
        "the initial state is read as [V, K]",
        _with_initial(_transposed),
        "initial_state",
    ),
    wrong(
        "final-transposed",
        "the final state is written as [V, K]",
        _in_final(lambda state, call: _transposed(state)),
        "final_state",
    ),
    wrong(
        "final-too-early",
        "the final state lacks the last token",
        _last_token_missing,
        "final_state",
    ),
    wrong(
        "empty-forgotten",
        "an empty sequence ends in zeros, not in its initial state",
        _in_final(_empty_forgotten),
        "varlen",
        "initial_state",
        "final_state",
    ),
    wrong("layout-ignored", "state_v_first is not looked at", _layout_ignored, "state_v_first"),
    wrong("states-after", "the state after each chunk is returned", _states_after, "states"),
)
