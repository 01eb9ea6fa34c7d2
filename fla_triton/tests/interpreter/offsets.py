"""Tokens that lie beyond 2**31 elements of every tensor: ``python -m interpreter.offsets``.

A packed call whose only sequence begins far into its row, as the last of many would. Of its tensors
only the pages of that sequence are ever touched. Host code is called directly: the core refuses
boundaries that do not begin with 0. A JSON line for every case: which results differ, in any bit,
from those of the same tokens at the row's beginning, and the gigabytes that were ever resident.

``--control`` plants offsets of 32 bits instead, one at a time: no case may then be right.
"""

# ruff: noqa: T201

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.inputs import Inputs, make_inputs
from fla_core.seqlens import SeqLens
from fla_core.slots import Slots
from fla_triton import delta_channel
from fla_triton.kernels import common, delta_recurrent
from fla_triton.profiles import PROFILES
from interpreter.__main__ import kernels_for
from interpreter.cases import FILLS, IDLE, STATES, case
from interpreter.pooled import without_states
from interpreter.shims import install, mend, spoil
from judging import Tensors

SIDE = 64
"""Keys and values: with chunks of as many tokens, 2**25 tokens are 2**31 elements of every tensor,
states and scores of pairs included."""

Row = tuple[str, tuple[str, ...], int, int, int]
CASES: tuple[Row, ...] = (
    # Chunks of 128 tokens keep half as many states.
    ("simple_gla", ("g",), FILLS, 70, 2**26),
    ("simple_gla", ("g",), FILLS, 5, 2**25),
    ("gla", ("gk",), FILLS, 70, 2**25),
    ("gla", ("gk",), FILLS, 5, 2**25),
    ("gated_delta_rule", ("g", "beta"), FILLS, 70, 2**25),
    ("gated_delta_rule", ("g", "beta"), IDLE, 70, 2**25),
    ("gated_delta_rule", ("g", "beta"), IDLE, 5, 2**25),
    ("kda", (), FILLS, 70, 2**25),
    ("kda", (), IDLE, 70, 2**25),
)
"""Contracts, their features, multiprocessors, tokens, and how many lie before them."""

CONTROLS = (
    (common.sequence_at, "to(tl.int64)", "to(tl.int32)"),
    (common.state_places, "tl.cast(index, tl.int64)", "tl.cast(index, tl.int32)"),
)
"""Functions of kernels, and what to replace in them."""

CONTROLLED = (CASES[0], CASES[4])

SLOT = 2**31 // SIDE**2 + 1
"""Of a pool of states, beyond as many elements."""


def placed(tensor: Tensor, axis: int, before: int) -> Tensor:
    """The tensor behind so many tokens that nobody ever wrote."""
    shape = list(tensor.shape)
    tokens, shape[axis] = shape[axis], shape[axis] + before
    room = torch.empty(shape, dtype=tensor.dtype)
    room.narrow(axis, before, tokens).copy_(tensor)
    return room


def answer(inputs: Inputs, multiprocessors: int, before: int) -> Tensors:
    """Outputs and gradients of a case's tokens behind others."""
    tokens = inputs.case.sizes["T"]

    def far(name: str, tensor: Tensor) -> Tensor:
        letters = inputs.letters(name)
        return placed(tensor, letters.index("T"), before) if "T" in letters else tensor

    def near(name: str, tensor: Tensor) -> Tensor:
        letters = inputs.letters(name)
        kept = tensor.narrow(letters.index("T"), before, tokens) if "T" in letters else tensor
        return kept.clone()

    given = {name: far(f"d{name}", tensor) for name, tensor in inputs.present.items()}
    call = inputs.call_with({**inputs.tensors, **given})
    bounds = before, before + tokens
    call.seqlens = SeqLens(torch.tensor(bounds), bounds)
    profile = replace(PROFILES["sm90"], multiprocessors=multiprocessors)
    kernels = kernels_for(inputs.case.contract, profile)
    outputs, residuals = kernels.forward(call, True)
    found = zip(inputs.output_names, outputs, strict=True)
    results = {name: near(name, tensor) for name, tensor in found}
    del outputs
    grads = [far(name, inputs.grads[name]) for name in inputs.output_names]
    derived = kernels.backward(call, residuals, grads, frozenset(inputs.wanted))
    if inputs.case.contract == "kda":
        derived = {name: x for name, x in derived.items() if name != "beta"}
    return results | {f"d{name}": near(f"d{name}", x) for name, x in derived.items()}


def different(one: Case, multiprocessors: int, before: int) -> list[str]:
    """Results that depend on where the tokens lie."""
    inputs = make_inputs(one)
    far, near = (answer(inputs, multiprocessors, tokens) for tokens in (before, 0))
    return [name for name in near if not torch.equal(far[name], near[name])]


def pooled(inputs: Inputs, slot: int) -> Tensors:
    """Outputs, and the state that is left, of a sequence whose state lies in that slot."""
    call = inputs.call()
    pool = torch.empty(slot + 1, 1, SIDE, SIDE, dtype=torch.bfloat16)
    pool[slot] = call.initial_state[0]
    kernels: Any = kernels_for(inputs.case.contract, PROFILES["sm90"])
    slots = Slots(pool, torch.tensor([slot]), None, True, False)
    (o,) = kernels.pooled(without_states(call), slots)
    return {"o": o, "state": pool[slot].clone()}


def differently_pooled(one: Case) -> list[str]:
    """Results that depend on the slot."""
    inputs = make_inputs(one)
    far, near = (pooled(inputs, slot) for slot in (SLOT, 1))
    return [name for name in near if not torch.equal(far[name], near[name])]


def told(what: str, find: Callable[[], list[str]]) -> None:
    """Print what is wrong with the results of a case."""
    begin = time.perf_counter()
    try:
        wrong = find()
    except Exception as error:
        wrong = [f"{type(error).__name__}: {error}"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    taken = time.perf_counter() - begin
    about = {"case": what, "wrong": wrong, "peak_gib": peak, "seconds": taken}
    print(json.dumps(about), flush=True)


def judge(where: str, rows: Sequence[Row]) -> None:
    """Judge cases."""
    for contract, features, multiprocessors, tokens, before in rows:
        sizes = 1, 0, 1, SIDE, SIDE
        one = case(contract, "bfloat16", sizes, (*features, *STATES), (tokens,))
        told(f"{where}{one.id}", partial(different, one, multiprocessors, before))


def judge_pool(where: str) -> None:
    """Judge a pool."""
    sizes = 1, 3, 1, SIDE, SIDE
    one = case("gated_delta_rule", "bfloat16", sizes, ("g", "beta", *STATES), direction="fwd")
    told(f"{where}pool {one.id}", partial(differently_pooled, one))


def main() -> None:
    """Judge every case, or some with offsets of 32 bits planted."""
    torch.set_num_threads(1)
    install()
    # One program for every 1024 tokens of the row; a sum of each token's own numbers.
    delta_channel.launch = lambda *_: None
    if "--control" not in sys.argv:
        judge("", CASES)
        judge_pool("")
        return
    for function, right, wrong in CONTROLS:
        spoil(function, right, wrong)
        judge(f"{function.__name__} ", CONTROLLED)
        mend(function)
    spoil(delta_recurrent.delta_pooled, "slot * units", "slot.to(tl.int32) * units")
    judge_pool("delta_pooled ")


if __name__ == "__main__":
    main()
