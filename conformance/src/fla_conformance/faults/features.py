"""Faults in what surrounds the recurrence: norms, activations, groups, direction."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fla_conformance.faults.fault import Maths, wrong
from fla_conformance.faults.maths import TIMED, present, right, without
from fla_core.call import Call
from fla_core.dtypes import wide
from fla_core.lowerings import Outputs


def unit(x: Tensor, eps: float = 1e-6, frozen: bool = False) -> Tensor:
    """x over its length; ``frozen`` lets no gradient flow through the length."""
    wider = x.to(wide(x))
    inverse = (wider.square().sum(-1, keepdim=True) + eps).rsqrt()
    return (wider * (inverse.detach() if frozen else inverse)).to(x.dtype)


def _norm(eps: float) -> Maths:
    return lambda call: right(without(call, "l2norm", q=unit(call.q, eps), k=unit(call.k, eps)))


def _keys_raw(call: Call) -> Outputs:
    return right(without(call, "l2norm", q=unit(call.q)))


def _dropped(*features: str) -> Maths:
    """A feature, and its arguments, that are not looked at."""

    def maths(call: Call) -> Outputs:
        absent = {name: None for name in features if name in call.tensors}
        options = {n: None if n in features else x for n, x in call.options.items()}
        return right(replace(without(call, *features, **absent), options=options))

    return maths


def _other_groups(call: Call) -> Outputs:
    heads = torch.arange(call.v.shape[2]) % call.q.shape[2]
    return right(without(call, "gva", q=call.q[:, :, heads], k=call.k[:, :, heads]))


def _shifted_groups(call: Call) -> Outputs:
    """A quotient taken as a shift: right where it is a power of two."""
    group = call.v.shape[2] // call.q.shape[2]
    heads = torch.arange(call.v.shape[2]) >> (group.bit_length() - 1)
    heads = heads.clamp_max(call.q.shape[2] - 1)
    return right(without(call, "gva", q=call.q[:, :, heads], k=call.k[:, :, heads]))


def _row_reversed(call: Call) -> Outputs:
    flipped = {name: x.flip(1) for name, x in present(call, TIMED).items()}
    outputs = right(without(call, "reverse", **flipped))
    return {**outputs, "o": outputs["o"].flip(1)}


def _not_divided(call: Call) -> Outputs:
    plain = right(without(call, "normalize", "initial_z", initial_z=None))
    return {**right(call), "o": plain["o"]}


def _zero_z(call: Call) -> Outputs:
    return right(call.but(initial_z=torch.zeros_like(call.initial_z)))


def _z_lost(call: Call) -> Outputs:
    outputs = right(call)
    return {**outputs, "final_z": outputs["final_z"] * 0}


def _bias_of_first(call: Call) -> Outputs:
    bias: Tensor = call.dt_bias
    each = bias.view(call.v.shape[2], -1)
    return right(call.but(dt_bias=each[:1].expand_as(each).reshape(bias.shape)))


FAULTS = (
    wrong("norm-eps", "lengths are taken with 1e-3 below the root", _norm(1e-3), "l2norm"),
    wrong("norm-of-q-only", "keys are not normalised", _keys_raw, "l2norm"),
    wrong("norm-ignored", "l2norm is not looked at", _dropped("l2norm"), "l2norm"),
    wrong("bias-ignored", "dt_bias is not added", _dropped("dt_bias"), "gate", "dt_bias"),
    wrong(
        "bias-of-first",
        "every head gets the first one's dt_bias",
        _bias_of_first,
        "gate",
        "dt_bias",
    ),
    wrong("rate-ignored", "A_log is not looked at", _dropped("A_log"), "gate", "A_log"),
    wrong(
        "bound-ignored",
        "lower_bound is not looked at",
        _dropped("lower_bound"),
        "gate",
        "lower_bound",
    ),
    wrong(
        "strength-raw",
        "logits of beta are taken as strengths",
        _dropped("beta_sigmoid", "neg_eigval"),
        "beta_sigmoid",
    ),
    wrong(
        "strength-not-doubled", "neg_eigval is not looked at", _dropped("neg_eigval"), "neg_eigval"
    ),
    wrong("groups-interleaved", "value head j reads key head j % H", _other_groups, "gva"),
    wrong(
        "groups-shifted",
        "value head j reads key head j >> log2 of the group",
        _shifted_groups,
        "gva",
    ),
    wrong("reverse-ignored", "reverse is not looked at", _dropped("reverse"), "reverse"),
    wrong(
        "row-reversed",
        "the whole row is reversed, not each sequence",
        _row_reversed,
        "reverse",
        "varlen",
    ),
    wrong("not-divided", "outputs are not divided by the normaliser", _not_divided, "normalize"),
    wrong("initial-z-ignored", "the initial normaliser is not read", _zero_z, "initial_z"),
    wrong("final-z-lost", "the final normaliser is zero", _z_lost, "normalize"),
)
