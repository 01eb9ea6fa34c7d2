"""Faults of manners: right values, but something is read, written or kept that must not be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from fla_conformance.faults.fault import Functions, Maths, unruly
from fla_conformance.faults.maths import right
from fla_core.call import Call
from fla_core.differentiable import Outputs, differentiable
from fla_core.seqlens import SeqLens

Change = Callable[[Outputs, Call], Outputs]


def functions(maths: Maths) -> Functions:
    """Forward and backward of a function of the call."""

    def ordered(call: Call) -> Outputs:
        outputs = maths(call)
        return tuple(outputs[s.name] for s in call.contract.outputs_for(call.features))

    return differentiable(ordered)


def _after(change: Change) -> Functions:
    """The right functions, with something done to the outputs of forward."""
    forward, backward = functions(right)

    def changed(call: Call, save: bool) -> tuple[Outputs, Outputs]:
        outputs, residuals = forward(call, save)
        return change(outputs, call), residuals

    return changed, backward


def _beyond(x: Tensor) -> Tensor:
    """The element behind a tensor in its memory; empty where the memory ends."""
    place = x.storage_offset() + x.numel()
    ends = place * x.itemsize >= x.untyped_storage().nbytes()
    return x.data.as_strided((0 if ends else 1,), (1,), place)


def _reads_beyond() -> Functions:
    def change(outputs: Outputs, call: Call) -> Outputs:
        weightless = 0 * _beyond(call.v).sum()
        return (outputs[0] + weightless, *outputs[1:])

    return _after(change)


def _writes_beyond() -> Functions:
    def change(outputs: Outputs, call: Call) -> Outputs:
        _beyond(call.v).zero_()
        return outputs

    return _after(change)


def _writes_argument() -> Functions:
    def change(outputs: Outputs, call: Call) -> Outputs:
        call.k.data.mul_(0.5)  # through .data: torch does not count this write
        return outputs

    return _after(change)


def _reads_scratch() -> Functions:
    def change(outputs: Outputs, call: Call) -> Outputs:
        scratch = torch.empty_like(outputs[0])
        return (outputs[0] + 0 * scratch, *outputs[1:])

    return _after(change)


def _dense(x: Tensor) -> Tensor:
    """The memory of a tensor read as if it were contiguous."""
    strides = [prod(x.shape[axis + 1 :]) for axis in range(x.dim())]
    enough = (x.storage_offset() + x.numel()) * x.itemsize <= x.untyped_storage().nbytes()
    return x.as_strided(x.shape, strides, x.storage_offset()) if enough else x


def _ignores_strides() -> Functions:
    def maths(call: Call) -> dict[str, Tensor]:
        return right(call.but(v=_dense(call.v)))

    return functions(maths)


def _louder(outputs: Outputs) -> Outputs:
    """The next number of the dtype, or the one after it."""
    o = outputs[0]
    return (o * (1 + torch.finfo(o.dtype).eps), *outputs[1:])


def _alternates() -> Functions:
    count = 0

    def change(outputs: Outputs, call: Call) -> Outputs:
        nonlocal count
        count += 1
        return _louder(outputs) if count % 2 else outputs

    return _after(change)


def _depends_on_batch() -> Functions:
    return _after(lambda outputs, call: outputs if call.q.shape[0] == 1 else _louder(outputs))


def _key(outputs: Outputs) -> object:
    return tuple((x.shape, x.dtype) for x in outputs)


def _keeps_buffer() -> Functions:
    kept: dict[object, Outputs] = {}

    def change(outputs: Outputs, call: Call) -> Outputs:
        buffers = kept.setdefault(_key(outputs), outputs)
        for buffer, x in zip(buffers, outputs, strict=True):
            buffer.copy_(x)
        return buffers

    return _after(change)


def _stale() -> Functions:
    kept: dict[object, Outputs] = {}

    def change(outputs: Outputs, call: Call) -> Outputs:
        key = _key(outputs)
        previous = kept.get(key) or tuple(torch.empty_like(x) for x in outputs)
        kept[key] = outputs
        return tuple(x.clone() for x in previous)

    return _after(change)


def _remembers_lengths() -> Functions:
    kept: dict[object, SeqLens] = {}

    def maths(call: Call) -> dict[str, Tensor]:
        if call.seqlens is None:
            return right(call)
        seqlens = SeqLens(call.seqlens.device, call.seqlens.bounds)
        return right(replace(call, seqlens=kept.setdefault((call.q.shape, seqlens.count), seqlens)))

    return functions(maths)


Gradients = Mapping[str, Tensor]


def _minds_needs() -> Functions:
    forward, backward = functions(right)

    def changed(
        call: Call, residuals: Outputs, grads: Sequence[Tensor | None], needs: frozenset[str]
    ) -> Gradients:
        found = dict(backward(call, residuals, grads, needs))
        if "q" in found and "v" not in needs:
            found["q"] = 2 * found["q"]
        return found

    return forward, changed


def _invents_gradients() -> Functions:
    forward, backward = functions(right)

    def changed(
        call: Call, residuals: Outputs, grads: Sequence[Tensor | None], needs: frozenset[str]
    ) -> Gradients:
        values, _ = forward(call, False)
        given = [
            torch.ones_like(x) if grad is None else grad
            for x, grad in zip(values, grads, strict=True)
        ]
        return backward(call, residuals, given, needs)

    return forward, changed


def _alone_otherwise() -> Functions:
    def maths(call: Call) -> dict[str, Tensor]:
        alone = call.seqlens is None and call.q.shape[0] == 1
        return right(replace(call, scale=call.scale * 1.05) if alone else call)

    return functions(maths)


FAULTS = (
    unruly(
        "reads-beyond", "the element behind v is read, with weight zero", _reads_beyond, "poison"
    ),
    unruly("writes-beyond", "the element behind v is written", _writes_beyond, "poison"),
    unruly("writes-argument", "k is halved when the work is done", _writes_argument, "immut"),
    unruly("reads-scratch", "scratch is read before it is written", _reads_scratch, "nanfill"),
    unruly(
        "ignores-strides", "v is read as if contiguous", _ignores_strides, "stride", strided=True
    ),
    unruly(
        "alternates",
        "every second call rounds otherwise",
        _alternates,
        "repeat",
        claims=frozenset({"deterministic"}),
    ),
    unruly(
        "depends-on-batch",
        "a batch of one rounds otherwise",
        _depends_on_batch,
        "batchrep",
        claims=frozenset({"batch_invariant"}),
    ),
    unruly(
        "keeps-buffer", "every call of a shape returns the same memory", _keeps_buffer, "repeat"
    ),
    unruly("stale", "a call returns what the one before it computed", _stale, "repeat"),
    unruly(
        "remembers-lengths",
        "boundaries are remembered by the shape of the call",
        _remembers_lengths,
        "refill",
        needs=frozenset({"varlen"}),
    ),
    unruly("minds-needs", "dq is doubled where dv is not wanted", _minds_needs, "gradmask"),
    unruly(
        "invents-gradients", "no incoming gradient is taken as ones", _invents_gradients, "gradmask"
    ),
    unruly("alone-otherwise", "a batch of one is scaled otherwise", _alone_otherwise, "pack"),
)
