"""The reference plugin's implementations: :mod:`.decay` and :mod:`.delta` behind calls."""

from __future__ import annotations

from torch import Tensor

from fla_core.call import Call
from fla_core.differentiable import differentiable
from fla_core.reference import oracle
from fla_core.reference.decay import decay_chunk
from fla_core.reference.delta import delta_chunk

_SMALLEST_CHUNK = 16


def _chunk_size(call: Call) -> int:
    """The hinted chunk, or 64; short calls take less so that they are not padded to 64."""
    preferred = call.hints.chunk_size or oracle.DEFAULT_CHUNK
    if "states" in call.features:
        return preferred
    tokens = max(int(call.q.shape[1]), _SMALLEST_CHUNK)
    return min(preferred, 1 << (tokens - 1).bit_length())


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
    o, state, states = delta_chunk(
        call.q,
        call.k,
        call.v,
        beta=call.beta,
        g=gates["g"],
        gk=gates["gk"],
        initial_state=call.initial_state,
        scale=call.scale,
        bounds=call.bounds,
        chunk_size=_chunk_size(call),
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
