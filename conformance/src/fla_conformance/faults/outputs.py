"""Faults in what is written: whole outputs, heads, tails and single elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.faults.fault import Maths, wrong
from fla_conformance.faults.maths import (
    edge,
    inside,
    later,
    recurrence,
    right,
    sooner,
    spans,
)
from fla_core.call import Call
from fla_core.lowerings import Outputs

_BLOCKS = 128
"""Beyond so many of something, what comes later is left out."""

_TOKENS = 4096

_TILE = 16
"""Tail masks are planted at tiles of 16, the smallest that matrix units have."""


def _in_o(change: Callable[[Tensor, Call], Tensor]) -> Maths:
    def maths(call: Call) -> Outputs:
        outputs = right(call)
        return {**outputs, "o": change(outputs["o"], call)}

    return maths


def _all_zero(call: Call) -> Outputs:
    return {name: x * 0 for name, x in right(call).items()}


def _times(mask: Tensor) -> Callable[[Tensor, Call], Tensor]:
    return lambda o, call: o * mask


def _one_head(o: Tensor, call: Call) -> Tensor:
    return torch.cat([o[:, :, :-1], o[:, :, -1:] * 0], 2)


def _one_row(o: Tensor, call: Call) -> Tensor:
    mask = torch.ones(o.shape[:3], dtype=o.dtype)
    if mask.numel():
        mask[-1, o.shape[1] // 2, 0] = 0
    return o * mask[..., None]


def token_tail_kept(call: Call) -> Tensor:
    """Ones at tokens inside whole tiles of 16, zeros behind them."""
    keep = torch.ones(call.q.shape[1])
    for _, begin, end in spans(call):
        keep[begin + (end - begin) // _TILE * _TILE : end] = 0
    return keep.view(1, -1, 1, 1)


def _token_tail(o: Tensor, call: Call) -> Tensor:
    return o * token_tail_kept(call).to(o.dtype)


def _value_tail(o: Tensor, call: Call) -> Tensor:
    whole = o.shape[-1] // _TILE * _TILE
    return torch.cat([o[..., :whole], o[..., whole:] * 0], -1)


def _key_tail(call: Call) -> Outputs:
    def compute(base: Call) -> Outputs:
        q: Tensor = base.q
        whole = q.shape[-1] // _TILE * _TILE
        return recurrence(base.but(q=torch.cat([q[..., :whole], q[..., whole:] * 0], -1)))

    return inside(call, compute)


def _nan_at_end(o: Tensor, call: Call) -> Tensor:
    mask = torch.zeros(o.shape[1], dtype=o.dtype)
    mask[-1:] = math.nan
    return o + mask.view(1, -1, 1, 1)


def _first_batch(o: Tensor, call: Call) -> Tensor:
    return o[:1].expand_as(o)


def _excludes_own(call: Call) -> Outputs:
    def compute(base: Call) -> Outputs:
        o = recurrence(base.but(q=sooner(base, base.q)))["o"]
        return {**recurrence(base), "o": later(base, o)}

    return inside(call, compute)


def _includes_next(call: Call) -> Outputs:
    def compute(base: Call) -> Outputs:
        o = recurrence(base.but(q=later(base, base.q)))["o"]
        outputs = recurrence(base)
        last = edge(base, last=True).view(1, -1, 1, 1)
        return {**outputs, "o": torch.where(last, outputs["o"], sooner(base, o))}

    return inside(call, compute)


def _later_blocks(o: Tensor, call: Call) -> Tensor:
    """Only so many heads of sequences have a block of threads."""
    index = torch.arange(o.shape[0] * o.shape[2]).view(o.shape[0], 1, o.shape[2], 1)
    return o * (index < _BLOCKS)


def _later_sequences(o: Tensor, call: Call) -> Tensor:
    bounds = call.bounds or ()
    return _until(o, bounds[_BLOCKS] if len(bounds) > _BLOCKS else o.shape[1])


def _until(o: Tensor, end: int) -> Tensor:
    return torch.cat([o[:, :end], o[:, end:] * 0], 1)


def _later_values(o: Tensor, call: Call) -> Tensor:
    first = o[..., :_BLOCKS]
    return torch.cat([first, first[..., : o.shape[-1] - first.shape[-1]]], -1)


def _later_keys(call: Call) -> Outputs:
    q: Tensor = call.q
    return right(call.but(q=torch.cat([q[..., :_BLOCKS], q[..., _BLOCKS:] * 0], -1)))


def _packed_by_default(call: Call) -> float:
    return call.scale if call.bounds is None else float(call.q.shape[-1]) ** -0.5


def _beyond_float16(call: Call) -> Outputs:
    """Scores in float16 before they are scaled."""
    scores = torch.einsum("bthk,bshk->bhts", call.q.double(), call.k.double()).tril()
    beyond = scores.abs().amax(-1).transpose(1, 2) > torch.finfo(torch.float16).max
    outputs = right(call)
    return {**outputs, "o": outputs["o"].masked_fill(beyond[..., None], math.inf)}


def _sequences(case: Case) -> int:
    return len(case.lengths or ())


def _scaled(factor: Callable[[Call], float]) -> Maths:
    return lambda call: right(replace(call, scale=factor(call)))


FAULTS = (
    wrong("o-scaled", "outputs are 0.8 % too large", _in_o(lambda o, call: o * 1.008)),
    wrong("all-zero", "every output is zero", _all_zero),
    wrong("head-zeroed", "outputs of the last head are zero", _in_o(_one_head)),
    wrong("heads-swapped", "heads are written in turn", _in_o(lambda o, call: o.roll(1, 2))),
    wrong("row-zeroed", "one token of one head is zero", _in_o(_one_row)),
    wrong("token-tail", "tokens after the last whole tile of 16 are dropped", _in_o(_token_tail)),
    wrong("value-tail", "value channels after the last whole tile are dropped", _in_o(_value_tail)),
    wrong("key-tail", "key channels after the last whole tile are not read", _key_tail),
    wrong("nan-at-end", "the last row is not a number", _in_o(_nan_at_end)),
    wrong(
        "batch-ignored", "every member of a batch gets the first one's outputs", _in_o(_first_batch)
    ),
    wrong("mask-excludes-own", "a token does not see itself", _excludes_own),
    wrong("mask-includes-next", "a token sees the next one", _includes_next),
    wrong("scale-twice", "scale is applied twice", _scaled(lambda call: call.scale**2)),
    wrong("scale-missing", "scale is not applied", _scaled(lambda call: 1.0)),
    wrong(
        "scale-default",
        "the caller's scale is ignored for the default",
        _scaled(lambda call: float(call.q.shape[-1]) ** -0.5),
        "scale",
    ),
    wrong(
        "scale-default-packed",
        "packed sequences get the default scale",
        _scaled(_packed_by_default),
        "scale",
        "varlen",
    ),
    wrong(
        "scores-in-float16",
        "scores are float16 before they are scaled",
        _beyond_float16,
        contracts=("linear_attn", "simple_gla", "gla"),
        where=lambda case: case.regime == "loud",
    ),
    wrong(
        "later-blocks",
        "of heads of sequences, only the first 128 are written",
        _in_o(_later_blocks),
        where=lambda case: case.sizes["B"] * case.sizes["HV"] > _BLOCKS,
    ),
    wrong(
        "later-sequences",
        "of packed sequences, only the first 128 are written",
        _in_o(_later_sequences),
        "varlen",
        where=lambda case: _sequences(case) > _BLOCKS,
    ),
    wrong(
        "later-values",
        "value channels after 128 get what the first ones get",
        _in_o(_later_values),
        where=lambda case: case.sizes["V"] > _BLOCKS,
    ),
    wrong(
        "later-keys",
        "key channels after 128 are not read",
        _later_keys,
        where=lambda case: case.sizes["K"] > _BLOCKS,
    ),
    wrong(
        "later-tokens",
        "tokens after 4096 are not written",
        _in_o(lambda o, call: _until(o, _TOKENS)),
        where=lambda case: case.sizes["T"] > _TOKENS,
    ),
)
