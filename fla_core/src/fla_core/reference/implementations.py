"""The reference plugin's implementations: :mod:`.decay` and :mod:`.delta` behind calls."""

from __future__ import annotations

from torch import Tensor

from fla_core.call import Call
from fla_core.differentiable import differentiable
from fla_core.reference import oracle
from fla_core.reference.decay import decay_chunk
from fla_core.reference.delta import delta_chunk

_SMALLEST_CHUNK = 16


def _chunk_size(call: Call, preferred: int = oracle.DEFAULT_CHUNK) -> int:
    """The hinted chunk, or the preferred one; short calls are not padded to all of it."""
    size = call.hints.chunk_size
    if "states" in call.features:
        return size or oracle.DEFAULT_CHUNK
    tokens = max(int(call.q.shape[1]), _SMALLEST_CHUNK)
    return min(size or preferred, 1 << (tokens - 1).bit_length())


def _delta_chunk_size(call: Call) -> int:
    """Small heads take 32: 1.2 times as fast as 64 at K = 64; at K = 128 it is the reverse."""
    return _chunk_size(call, 32 if call.k.shape[3] <= 64 else 64)


def _wanted(call: Call, o: Tensor, state: Tensor, states: Tensor | None) -> tuple[Tensor, ...]:
    outputs = [o]
    if "final_state" in call.features:
        outputs.append(state)
    if states is not None:
        outputs.append(states.to(call.k.dtype))
    return tuple(outputs)


def _decay_chunk(call: Call) -> tuple[Tensor, ...]:
    gates = oracle.gates(call)
    o, state, _ = decay_chunk(
        call.q,
        call.k,
        call.v,
        g=gates["g"],
        gk=gates["gk"],
        gv=gates["gv"],
        initial_state=call.initial_state,
        scale=call.scale,
        bounds=call.bounds,
        chunk_size=_chunk_size(call),
    )
    return _wanted(call, o, state, None)


def _delta_chunk(call: Call) -> tuple[Tensor, ...]:
    gates = oracle.gates(call)
    terms = oracle.error_terms(call)
    o, state, states = delta_chunk(
        call.q,
        call.k,
        terms.v,
        beta=terms.beta,
        read=terms.read,
        g=gates["g"],
        gk=gates["gk"],
        initial_state=call.initial_state,
        scale=call.scale,
        bounds=call.bounds,
        chunk_size=_delta_chunk_size(call),
        return_states="states" in call.features,
    )
    return _wanted(call, o, state, states)


def _decay_recurrent(call: Call) -> tuple[Tensor, ...]:
    outputs = oracle.decay(call)
    return _wanted(call, outputs["o"], outputs["final_state"], None)


def _delta_recurrent(call: Call) -> tuple[Tensor, ...]:
    outputs = oracle.delta(call)
    return _wanted(call, outputs["o"], outputs["final_state"], outputs.get("states"))


decay_chunk_forward, decay_chunk_backward = differentiable(_decay_chunk)
delta_chunk_forward, delta_chunk_backward = differentiable(_delta_chunk)
decay_recurrent_forward, decay_recurrent_backward = differentiable(_decay_recurrent)
delta_recurrent_forward, delta_recurrent_backward = differentiable(_delta_recurrent)
