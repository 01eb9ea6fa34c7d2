"""Faults of backward alone: the values are right, what flows back is not."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fla_conformance.faults.fault import Fault, Maths, wrong
from fla_conformance.faults.features import unit
from fla_conformance.faults.maths import (
    GATES,
    inside,
    present,
    recurrence,
    regraded,
    right,
    without,
)
from fla_conformance.faults.outputs import token_tail_kept
from fla_conformance.faults.states import chunked
from fla_core.call import Call
from fla_core.contracts import CONTRACTS
from fla_core.lowerings import Outputs


def _graded(name: str, factor: float) -> Maths:
    return lambda call: right(call.but(**{name: regraded(getattr(call, name), factor)}))


def _of_input(name: str, label: str, what: str, factor: float) -> Fault:
    """The gradient of one input multiplied; everywhere the input exists."""
    return wrong(f"d{name}-{label}", what, _graded(name, factor), name, backward=True)


def _unused(output: str) -> Maths:
    def maths(call: Call) -> Outputs:
        outputs = right(call)
        return {**outputs, output: outputs[output].detach()}

    return maths


def _gates_without_final(call: Call) -> Outputs:
    def compute(base: Call) -> Outputs:
        outputs = recurrence(base)
        frozen = {name: x.detach() for name, x in present(base, GATES).items()}
        return {**outputs, "final_state": recurrence(base.but(**frozen))["final_state"]}

    return inside(call, compute)


def _initial_without_o(call: Call) -> Outputs:
    frozen = right(call.but(initial_state=call.initial_state.detach()))
    return {**right(call), "o": frozen["o"]}


def _first_of_group(call: Call) -> Outputs:
    group = call.v.shape[2] // call.q.shape[2]

    def spread(x: Tensor) -> Tensor:
        repeated = x.repeat_interleave(group, dim=2)
        first = torch.arange(repeated.shape[2]) % group == 0
        return torch.where(first[:, None], repeated, repeated.detach())

    return right(without(call, "gva", q=spread(call.q), k=spread(call.k)))


def _length_frozen(call: Call) -> Outputs:
    q, k = (unit(x, frozen=True) for x in (call.q, call.k))
    return right(without(call, "l2norm", q=q, k=k))


def _without_scale(call: Call) -> Outputs:
    return right(call.but(q=regraded(call.q, 1 / call.scale)))


def _tail(call: Call) -> Outputs:
    outputs = right(call)
    o, kept = outputs["o"], token_tail_kept(call)
    return {**outputs, "o": torch.where(kept > 0, o, o.detach())}


def _first_member(name: str) -> Maths:
    """Of a parameter's gradient, only the first row or sequence is summed."""

    def maths(call: Call) -> Outputs:
        whole = right(call)
        frozen = right(call.but(**{name: getattr(call, name).detach()}))
        return {n: torch.cat([x[:1], frozen[n][1:]]) for n, x in whole.items()}

    return maths


def _each(names: tuple[str, ...], make: Callable[[str], Fault]) -> tuple[Fault, ...]:
    return tuple(make(name) for name in names)


_INPUTS = tuple(dict.fromkeys(name for c in CONTRACTS.values() for name in c.input_names))

FAULTS = (
    *_each(
        _INPUTS,
        lambda name: _of_input(name, "zeroed", f"the gradient of {name} is zero", 0.0),
    ),
    *_each(
        (*GATES, "beta", "b", "w", "A_log"),
        lambda name: _of_input(name, "negated", f"the gradient of {name} has the wrong sign", -1.0),
    ),
    wrong("dq-without-scale", "the gradient of q lacks scale", _without_scale, backward=True),
    wrong(
        "dht-ignored",
        "the final state's gradient is not read",
        _unused("final_state"),
        "final_state",
        backward=True,
    ),
    wrong(
        "dz-ignored",
        "the normaliser's gradient is not read",
        _unused("final_z"),
        "normalize",
        backward=True,
    ),
    wrong(
        "dg-without-final",
        "gradients of gates lack what comes in through the final state",
        _gates_without_final,
        "final_state",
        contracts=("simple_gla", "gla", "gated_delta_rule", "kda", "gdn2"),
        backward=True,
    ),
    wrong(
        "dh0-without-o",
        "the initial state's gradient lacks what comes in through the outputs",
        _initial_without_o,
        "initial_state",
        backward=True,
    ),
    wrong(
        "group-not-summed",
        "of a group, only the first head's gradient is kept",
        _first_of_group,
        "gva",
        backward=True,
    ),
    wrong(
        "length-frozen",
        "gradients do not flow through the length of q and k",
        _length_frozen,
        "l2norm",
        backward=True,
    ),
    wrong(
        "dstate-not-carried",
        "gradients of states end at their chunk",
        chunked(torch.Tensor.detach),
        backward=True,
    ),
    wrong(
        "do-tail", "gradients of outputs are read up to the last whole tile", _tail, backward=True
    ),
    *_each(
        ("A_log", "dt_bias", "g_gamma"),
        lambda name: wrong(
            f"d{name}-of-first",
            f"the gradient of {name} is that of the first row or sequence",
            _first_member(name),
            name,
            backward=True,
        ),
    ),
)
