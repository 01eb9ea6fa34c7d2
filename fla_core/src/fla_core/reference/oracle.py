"""The differentiable token recurrence of every contract, features included: what is right.

Each implementation is compared with this, run in float64: all lowerings of the contract, then the
recurrence token by token, then the lifts. No dispatch, no chunks, no hand-written derivative.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from fla_core.call import Call
from fla_core.domain import Domain, Presence
from fla_core.dtypes import wide
from fla_core.lower import lift, load, lower
from fla_core.lowerings import Outputs
from fla_core.reference.decay import decay_recurrent
from fla_core.reference.delta import delta_recurrent
from fla_core.reference.operands import compute_dtype

DEFAULT_CHUNK = 64


def oracle(call: Call) -> Outputs:
    """Compute a raw call by definition; differentiable in every tensor argument.

    Args:
        call: any call of any contract; float64 tensors give the gold values.

    Returns:
        outputs by name, those the call's features ask for.
    """
    lowerings, _ = call.contract.lowerings_for(call.features, _base_domain(call))
    chain = lower(call, lowerings)
    outputs = lift(load(call.contract.reference)(chain[-1]), chain, lowerings)
    return {spec.name: outputs[spec.name] for spec in call.contract.outputs_for(call.features)}


def _base_domain(call: Call) -> Domain:
    """The domain of a recurrence: gates, packed sequences and states, nothing else."""
    takes = ("varlen", "initial_state", "final_state", "states", "g", "gk", "gv", "beta_v")
    features: dict[str, Presence] = dict.fromkeys(takes, "optional")
    return Domain(features={**features, "beta": "required"})


def gates(call: Call) -> dict[str, Tensor | None]:
    """The call's gates under the names of the recurrences; a per-channel ``g`` is ``gk``."""
    g, gk = call.get("g"), call.get("gk")
    if g is not None and g.dim() == 4:
        g, gk = None, g
    return {"g": g, "gk": gk, "gv": call.get("gv")}


class ErrorTerms(NamedTuple):
    """What the errors ``beta (v - S~^T read)`` of a delta rule are made of."""

    v: Tensor
    beta: Tensor | None  # ones if None
    read: Tensor | None  # k if None


def error_terms(call: Call) -> ErrorTerms:
    """``beta (v - S~^T k)``, or with strengths for each channel ``w*v - S~^T (b*k)``."""
    k: Tensor = call.k
    v: Tensor = call.v
    b, w = call.get("b"), call.get("w")
    if b is None or w is None:
        return ErrorTerms(v, call.beta, None)
    dtype = compute_dtype(call.q)
    return ErrorTerms(w.to(dtype) * v.to(dtype), None, b.to(dtype) * k.to(dtype))


def decay(call: Call) -> Outputs:
    """S_t = diag(exp(gk)) exp(g) S_{t-1} diag(exp(gv)) + k v^T;  o = scale S^T q."""
    o, state = decay_recurrent(
        call.q,
        call.k,
        call.v,
        **gates(call),
        initial_state=call.initial_state,
        scale=call.scale,
        bounds=call.bounds,
    )
    return {"o": o, "final_state": state}


def delta(call: Call) -> Outputs:
    """S_t = S~ + k e^T with the error of :func:`error_terms`, S~ decayed;  o = scale S^T q."""
    o, state = _delta(call, call.bounds, call.initial_state)
    outputs = {"o": o, "final_state": state}
    if "states" in call.features:
        outputs["states"] = _states_before_chunks(call)
    return outputs


def _delta(
    call: Call, bounds: tuple[int, ...] | None, state: Tensor | None, tokens: slice = slice(None)
) -> tuple[Tensor, Tensor]:
    def part(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[:, tokens]

    terms = error_terms(call)
    return delta_recurrent(
        call.q[:, tokens],
        call.k[:, tokens],
        terms.v[:, tokens],
        beta=part(terms.beta),
        read=part(terms.read),
        **{name: part(gate) for name, gate in gates(call).items()},
        initial_state=state,
        scale=call.scale,
        bounds=bounds,
    )


def _states_before_chunks(call: Call) -> Tensor:
    """Run chunk after chunk and keep the state each begins with, in the dtype of k."""
    size = call.hints.chunk_size or DEFAULT_CHUNK
    dense = call.bounds is None
    bounds = call.bounds or (0, call.q.shape[1])
    v: Tensor = call.v
    count = call.num_sequences
    blank = (v.shape[2], call.k.shape[3], v.shape[3])
    states = []
    for sequence, (begin, end) in enumerate(pairwise(bounds)):
        rows = slice(None) if dense else slice(sequence, sequence + 1)
        state = v.new_zeros(count, *blank, dtype=wide(v))
        if call.initial_state is not None:
            given: Tensor = call.initial_state
            state = given.to(state.dtype)
        state = state[rows]
        for first in range(begin, end, size):
            states.append(state)
            _, state = _delta(call, None, state, slice(first, min(first + size, end)))
    if not states:
        return v.new_zeros(v.shape[0], 0, *blank)
    k: Tensor = call.k
    return torch.stack(states, dim=1).to(k.dtype)
