"""Faults in decays and writing strengths."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fla_conformance.faults.fault import Maths, wrong
from fla_conformance.faults.maths import (
    GATES,
    inside,
    later,
    present,
    recurrence,
    right,
    spans,
    without,
)
from fla_core.call import Call
from fla_core.dtypes import wide
from fla_core.lowerings import Outputs
from fla_core.reference import oracle

DECAY = ("simple_gla", "gla")
GATED = (*DECAY, "gated_delta_rule", "kda", "gdn2")
DELTA = ("delta_rule", "gated_delta_rule", "kda")
STRENGTHS = {"b": "erases", "w": "writes"}


def with_gates(change: Callable[[Tensor, Call], Tensor], names: tuple[str, ...] = GATES) -> Maths:
    """Gates of the base form, each replaced."""

    def compute(base: Call) -> Outputs:
        return recurrence(base.but(**{n: change(x, base) for n, x in present(base, names).items()}))

    return lambda call: inside(call, compute)


def _sums(x: Tensor, base: Call) -> Tensor:
    """Sums of gates from the start of each sequence."""
    if base.bounds is None:
        return x.cumsum(1)
    parts = [x[:, begin:end].cumsum(1) for _, begin, end in spans(base)]
    return torch.cat(parts, 1) if parts else x


def _key_gates(base: Call) -> Tensor | None:
    gates = oracle.gates(base)
    g, gk = gates["g"], gates["gk"]
    if g is None:
        return gk
    return g[..., None] if gk is None else gk + g[..., None]


def _factored(call: Call) -> Outputs:
    """exp(G_i - G_j) as exp(G_i) exp(-G_j): right until the second factor overflows."""

    def compute(base: Call) -> Outputs:
        gates = _key_gates(base)
        if gates is None or not base.q.shape[1]:
            return recurrence(base)
        sums = _sums(gates.to(wide(base.q)), base)
        plain = base.but(
            q=base.q.to(sums.dtype) * sums.exp(),
            k=base.k.to(sums.dtype) * (-sums).exp(),
            **dict.fromkeys(present(base, ("g", "gk"))),
        )
        outputs = recurrence(plain)
        return {
            "o": outputs["o"].to(base.q.dtype),
            "final_state": outputs["final_state"] * _totals(sums, base).exp(),
        }

    return inside(call, compute)


def _totals(sums: Tensor, base: Call) -> Tensor:
    """Sum of the gates of each sequence, ``[N, H, 1 or K, 1]``."""
    if base.bounds is None:
        return sums[:, -1, :, :, None]
    none = torch.zeros_like(sums[:, 0])
    ends = [sums[:, end - 1] if begin < end else none for _, begin, end in spans(base)]
    return torch.cat(ends)[..., None]


def _with_beta(change: Callable[[Tensor, Call], Tensor]) -> Maths:
    return with_gates(change, ("beta",))


def _not_erased(call: Call) -> Outputs:
    def compute(base: Call) -> Outputs:
        if "states" in base.features:
            return recurrence(base)
        terms = oracle.error_terms(base)
        v, beta = terms.v, terms.beta
        if beta is not None:
            v = v.to(wide(v)) * (beta if beta.dim() == 4 else beta[..., None])
        return oracle.decay(base.but(v=v))

    return inside(call, compute)


def _one_strength(call: Call) -> Outputs:
    beta: Tensor = call.beta
    return right(call.but(beta=beta[..., :1].expand_as(beta)))


def _first_channel(name: str) -> Maths:
    return with_gates(lambda x, base: x[..., :1].expand_as(x), (name,))


def _erasing_key_written(call: Call) -> Outputs:
    def compute(base: Call) -> Outputs:
        k = base.k.to(wide(base.k)) * base.b
        return recurrence(base.but(k=k, b=torch.ones_like(base.b)))

    return inside(call, compute)


def _ignored(name: str) -> Maths:
    return with_gates(lambda x, base: torch.zeros_like(x), (name,))


FAULTS = (
    wrong(
        "gates-shifted",
        "a token decays by its predecessor's gates",
        with_gates(lambda x, base: later(base, x)),
        contracts=GATED,
    ),
    *(
        wrong(f"{name}-ignored", f"nothing decays by {name}", _ignored(name), name)
        for name in GATES
    ),
    wrong(
        "gates-factored",
        "decays are quotients of exponentials, which overflow",
        _factored,
        contracts=DECAY,
    ),
    wrong(
        "gamma-dropped",
        "g_gamma is not looked at",
        lambda call: right(without(call, "g_gamma", g_gamma=None)),
        "g_gamma",
    ),
    wrong(
        "gamma-of-first",
        "every head decays by the first one's g_gamma",
        lambda call: right(call.but(g_gamma=call.g_gamma[:1].expand_as(call.g_gamma))),
        "g_gamma",
    ),
    wrong(
        "beta-ignored",
        "writing strengths are taken as one",
        _with_beta(lambda x, base: x * 0 + 1),
        "beta",
    ),
    wrong(
        "beta-shifted",
        "a token writes with its predecessor's strength",
        _with_beta(lambda x, base: later(base, x)),
        contracts=DELTA,
    ),
    wrong(
        "beta-clipped",
        "writing strengths end at one",
        _with_beta(lambda x, base: x.clamp_max(1.0)),
        contracts=DELTA,
    ),
    wrong(
        "not-erased",
        "the old value of a key is not subtracted",
        _not_erased,
        contracts=(*DELTA, "gdn2"),
    ),
    wrong(
        "beta-of-first", "the first value channel's strength serves all", _one_strength, "beta_v"
    ),
    *(
        wrong(
            f"{name}-ignored",
            f"{name} is taken as one",
            with_gates(lambda x, base: torch.ones_like(x), (name,)),
            name,
        )
        for name in STRENGTHS
    ),
    *(
        wrong(
            f"{name}-shifted",
            f"a token {verb} with its predecessor's strengths",
            with_gates(lambda x, base: later(base, x), (name,)),
            name,
        )
        for name, verb in STRENGTHS.items()
    ),
    *(
        wrong(
            f"{name}-of-first",
            f"every channel {verb} with the first one's strength",
            _first_channel(name),
            name,
        )
        for name, verb in STRENGTHS.items()
    ),
    wrong(
        "b-clipped",
        "erasing strengths end at one",
        with_gates(lambda x, base: x.clamp_max(1.0), ("b",)),
        "b",
    ),
    wrong("b-writes", "the key that is written bears b, too", _erasing_key_written, "b"),
)
