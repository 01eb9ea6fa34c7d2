"""Relations between operators, and between calls of one operator, that hold without an oracle."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from op_cases import Case, make_inputs, public_call
from op_compare import assert_exact, evaluate, make_weights
from torch import Tensor

from fla_core import ops
from fla_core.errors import ContractError
from fla_core.ops.gated_delta_rule import (
    fused_gdn_gate,
    naive_chunk_gated_delta_rule,
    naive_recurrent_gated_delta_rule,
)
from fla_core.ops.gdn2 import naive_chunk_gdn2, naive_recurrent_gdn2
from fla_core.ops.kda import fused_kda_gate

Named = dict[str, Tensor]
STATE = ("initial_state",)
PACKED = (0, 3, 17, 0, 1, 20, 0)
TIMED = ("q", "k", "v", "g", "gk", "gv", "beta", "b", "w")


def leaves(**tensors: Tensor) -> Named:
    return {name: x.clone().requires_grad_() for name, x in tensors.items()}


def gradients(outputs: tuple[Tensor, Tensor], inputs: Named) -> Named:
    """Outputs and gradients under fixed random gradients of both outputs."""
    rng = torch.Generator().manual_seed(7)
    seeds = [torch.randn(x.shape, generator=rng, dtype=x.dtype) for x in outputs]
    found = torch.autograd.grad(outputs, list(inputs.values()), seeds)
    return {"o": outputs[0].detach(), "final_state": outputs[1].detach()} | {
        f"d{name}": grad for name, grad in zip(inputs, found, strict=True)
    }


def assert_same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> None:
    assert_exact(left, right, tolerance=1e-11)


@pytest.mark.parametrize("form", ["chunk", "fused_recurrent"])
def test_open_gate_is_the_delta_rule(form: str) -> None:
    x = make_inputs(Case("chunk_delta_rule", ("beta", *STATE), T=70))
    a, b = leaves(**x), leaves(**x)
    gate = torch.zeros_like(x["beta"])
    gated = getattr(ops, f"{form}_gdn")(**a, g=gate, output_final_state=True)
    plain = getattr(ops, f"{form}_delta_rule")(**b, output_final_state=True)
    assert_same(gradients(gated, a), gradients(plain, b))


@pytest.mark.parametrize("form", ["chunk", "fused_recurrent"])
def test_kda_with_equal_channels_is_gdn(form: str) -> None:
    x = make_inputs(Case("chunk_gdn", ("g", "beta", *STATE), T=70, HV=4))
    a, b = leaves(**x), leaves(**x)
    wide = a["g"][..., None].expand(*a["g"].shape, a["k"].shape[-1])
    kda = getattr(ops, f"{form}_kda")(**(a | {"g": wide}), output_final_state=True)
    gdn = getattr(ops, f"{form}_gdn")(**b, output_final_state=True)
    assert_same(gradients(kda, a), gradients(gdn, b))


@pytest.mark.parametrize("form", ["chunk", "fused_recurrent"])
def test_gdn2_with_one_strength_is_kda(form: str) -> None:
    x = make_inputs(Case("chunk_kda", ("beta", *STATE), T=70, HV=4))
    a, b = leaves(**x), leaves(**x)
    strengths = {n: a["beta"][..., None].expand_as(a[x]) for n, x in (("b", "g"), ("w", "v"))}
    given = {n: t for n, t in a.items() if n != "beta"}
    gdn2 = getattr(ops, f"{form}_gdn2")(**given, **strengths, output_final_state=True)
    kda = getattr(ops, f"{form}_kda")(**b, output_final_state=True)
    assert_same(gradients(gdn2, a), gradients(kda, b))


@pytest.mark.parametrize("op", ["chunk_kda", "fused_recurrent_kda", "chunk_gdn"])
def test_without_writing_the_state_only_decays(op: str) -> None:
    case = Case(op, ("g", "beta", *STATE), T=40, HV=4)
    x = make_inputs(case)
    x["beta"] = torch.zeros_like(x["beta"])
    got = public_call(case, x)
    gate = x["g"] if x["g"].dim() == 4 else x["g"][..., None]
    decayed = gate.cumsum(1).exp()[..., None] * x["initial_state"][:, None]
    reads = x["q"].repeat_interleave(2, dim=2) * case.K**-0.5
    assert_same(
        got, {"o": torch.einsum("bthk,bthkv->bthv", reads, decayed), "final_state": decayed[:, -1]}
    )


@pytest.mark.parametrize("form", ["chunk", "fused_chunk", "fused_recurrent"])
def test_linear_attention_is_simple_gla_without_decay(form: str) -> None:
    x = make_inputs(Case("chunk_linear_attn", STATE, T=70))
    a, b = leaves(**x), leaves(**x)
    linear = getattr(ops, f"{form}_linear_attn")(**a, normalize=False, output_final_state=True)
    simple = getattr(ops, f"{form}_simple_gla")(**b, output_final_state=True)
    assert_same(gradients(linear, a), gradients(simple, b))


def gamma_of(op: str, heads: int) -> tuple[Tensor, dict[str, Any]]:
    """Log decays by their formula and the arguments that ask for them."""
    if "retention" in op:
        decays = [math.log(1 - 2 ** (-5 - h)) for h in range(heads)]
        return torch.tensor(decays, dtype=torch.float64), {}
    slope = 8 / heads * (1 - 3 / 12)
    gamma = torch.tensor([-slope * h for h in range(heads)], dtype=torch.float64)
    return gamma, {"layer_idx": 3, "num_layers": 12}


@pytest.mark.parametrize("form", ["chunk", "fused_recurrent"])
@pytest.mark.parametrize("name", ["retention", "lightning_attn"])
def test_fixed_decays_are_simple_gla(name: str, form: str) -> None:
    x = make_inputs(Case("chunk_retention", STATE, T=70, H=8))
    a, b = leaves(**x), leaves(**x)
    gamma, extra = gamma_of(name, 8)
    fixed = getattr(ops, f"{form}_{name}")(**a, **extra, output_final_state=True)
    simple = getattr(ops, f"{form}_simple_gla")(**b, g_gamma=gamma, output_final_state=True)
    assert_same(gradients(fixed, a), gradients(simple, b))


def test_the_last_layer_of_lightning_attention_does_not_decay() -> None:
    x = make_inputs(Case("chunk_lightning_attn", STATE, T=70, H=3))
    last = ops.chunk_lightning_attn(**x, layer_idx=4, num_layers=4, output_final_state=True)
    plain = ops.chunk_linear_attn(**x, normalize=False, output_final_state=True)
    assert_same(dict(zip("os", last, strict=True)), dict(zip("os", plain, strict=True)))


@pytest.mark.parametrize("name", ["simple_gla", "retention"])
@pytest.mark.parametrize("lens", [None, (3, 0, 40)], ids=["dense", "packed"])
def test_parallel_is_chunk(name: str, lens: tuple[int, ...] | None) -> None:
    args = ("g",) if name == "simple_gla" else ()
    parallel, chunk = (
        Case(f"{form}_{name}", args, (), T=70, lens=lens) for form in ("parallel", "chunk")
    )
    x = make_inputs(parallel)
    assert_same(evaluate(public_call, parallel, x), evaluate(public_call, chunk, x))


@pytest.mark.parametrize("name", ["simple_gla", "retention"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_attention_weights_applied_to_v_are_o(name: str, dtype: torch.dtype) -> None:
    op, gates = getattr(ops, f"parallel_{name}"), ("g",) if name == "simple_gla" else ()
    x = make_inputs(Case(f"parallel_{name}", gates, (), T=33, H=3, gates="reset", dtype=dtype))
    o, weights = op(**x, output_attentions=True, scale=0.4)
    applied = torch.einsum("bhts,bshv->bthv", weights, x["v"])
    torch.testing.assert_close(applied, o, rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-5)
    assert weights.dtype == dtype
    assert not weights.triu(1).any()
    assert op(**x)[1] is None


def test_attention_weights_have_gradients() -> None:
    x = leaves(**make_inputs(Case("parallel_simple_gla", ("g",), (), T=17)))
    o, weights = ops.parallel_simple_gla(**x, output_attentions=True)
    w = torch.randn(o.shape, dtype=o.dtype, generator=torch.Generator().manual_seed(3))
    through_o = torch.autograd.grad((o * w).sum(), [*x.values()])
    applied = torch.einsum("bhts,bshv->bthv", weights, x["v"])
    through_weights = torch.autograd.grad((applied * w).sum(), [*x.values()])
    for left, right in zip(through_o, through_weights, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-11)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_the_gate_of_gdn_alone(bias: bool) -> None:
    args = ("g", "beta", "A_log", *(("dt_bias",) if bias else ()), *STATE)
    x = make_inputs(Case("chunk_gdn", args, ("final_state", "gate"), T=20, HV=4))
    a, b = leaves(**x), leaves(**x)
    inside = ops.chunk_gdn(**a, use_gate_in_kernel=True, output_final_state=True)
    given = {n: b[n] for n in ("g", "A_log", "dt_bias") if n in b}
    decay = fused_gdn_gate(**given, output_dtype=torch.float64)
    plain = {n: t for n, t in b.items() if n not in given}
    outside = ops.chunk_gdn(**plain, g=decay, output_final_state=True)
    assert_same(gradients(inside, a), gradients(outside, b))
    shift = x["dt_bias"] if bias else 0.0
    assert_same({"": decay.detach()}, {"": -x["A_log"].exp() * (x["g"] + shift).exp().add(1).log()})


@pytest.mark.parametrize("bound", [None, -3.0])
def test_the_gate_of_kda_alone(bound: float | None) -> None:
    case = Case("chunk_kda", ("beta", "A_log", "dt_bias", *STATE), T=20, HV=4)
    x = make_inputs(case)
    a, b = leaves(**x), leaves(**x)
    inside = ops.chunk_kda(**a, use_gate_in_kernel=True, lower_bound=bound, output_final_state=True)
    given = {n: b[n] for n in ("g", "A_log", "dt_bias")}
    decay = fused_kda_gate(**given, lower_bound=bound, output_dtype=torch.float64)
    plain = {n: t for n, t in b.items() if n not in given}
    outside = ops.chunk_kda(**plain, g=decay, output_final_state=True)
    assert_same(gradients(inside, a), gradients(outside, b))
    logits = x["g"] + x["dt_bias"].view(4, case.K)
    rate = x["A_log"].exp()[:, None]
    free = -rate * logits.exp().add(1).log()
    bounded = 0.0 if bound is None else bound / (1 + (-rate * logits).exp())
    assert_same({"": decay.detach()}, {"": free if bound is None else bounded})


def test_the_gate_of_kda_alone_needs_a_rate_or_a_bound() -> None:
    with pytest.raises(ContractError) as caught:
        fused_kda_gate(torch.zeros(1, 3, 2, 4))
    said = caught.value
    assert (said.operator, said.argument, said.got) == ("kda.fused_kda_gate", "A_log", "None")
    assert said.expected == "the log of the gate's rate, [HV], or lower_bound"  # it has no flag


@pytest.mark.parametrize("naive", [naive_recurrent_gated_delta_rule, naive_chunk_gated_delta_rule])
def test_the_naive_forms_are_gdn(naive: Callable[..., Any]) -> None:
    x = make_inputs(Case("chunk_gdn", ("g", "beta", *STATE), T=70))
    want = ops.chunk_gdn(**x, output_final_state=True)
    got = naive(**x, output_final_state=True)
    assert_same(dict(zip("os", got, strict=True)), dict(zip("os", want, strict=True)))
    assert naive(**x)[1] is None
    narrow = naive(**{n: t.bfloat16() for n, t in x.items()})
    assert narrow[0].dtype == torch.float32


@pytest.mark.parametrize("naive", [naive_recurrent_gdn2, naive_chunk_gdn2])
def test_the_naive_forms_are_gdn2(naive: Callable[..., Any]) -> None:
    x = make_inputs(Case("chunk_gdn2", STATE, T=70))
    want = ops.chunk_gdn2(**x, output_final_state=True)
    got = naive(**x, output_final_state=True)
    assert_same(dict(zip("os", got, strict=True)), dict(zip("os", want, strict=True)))
    assert naive(**x)[1] is None
    narrow = naive(**{n: t.bfloat16() for n, t in x.items()})
    assert narrow[0].dtype == torch.float32


#: One call of each family and form, for relations between calls.
CALLS = {
    "linear": Case("chunk_linear_attn", STATE),
    "normalised": Case(
        "chunk_linear_attn", ("initial_state", "initial_z"), ("final_state", "normalize")
    ),
    "simple_gla": Case("chunk_simple_gla", ("g", "g_gamma", *STATE), gates="strong"),
    "retention": Case("fused_recurrent_retention", STATE),
    "gla": Case("fused_recurrent_gla", ("gk", "gv", *STATE)),
    "delta": Case("chunk_delta_rule", ("beta", *STATE), ("final_state", "l2norm")),
    "gdn": Case(
        "chunk_gdn", ("g", "beta", *STATE), ("final_state", "state_v_first"), HV=4, gates="strong"
    ),
    "kda": Case(
        "chunk_kda",
        ("beta", "A_log", "dt_bias", *STATE),
        ("final_state", "gate", "beta_sigmoid"),
        HV=4,
    ),
    "kda recurrent": Case("fused_recurrent_kda", ("beta_v", *STATE), gates="reset"),
    "gdn2": Case("chunk_gdn2", STATE, ("final_state", "l2norm"), HV=4, gates="reset"),
}
every_call = pytest.mark.parametrize("case", CALLS.values(), ids=CALLS)


def tokens(x: Named, which: slice, **states: Tensor) -> Named:
    return {n: t[:, which] if n in TIMED else t for n, t in x.items()} | states


def states_of(outputs: Named) -> Named:
    return {n.replace("final", "initial"): t for n, t in outputs.items() if n.startswith("final")}


@every_call
@pytest.mark.parametrize("split", [0, 1, 16, 64, 69, 70])
def test_one_pass_is_two_with_the_state_carried(case: Case, split: int) -> None:
    x = make_inputs(replace(case, T=70))
    whole = public_call(case, x)
    first = public_call(case, tokens(x, slice(0, split)))
    second = public_call(case, tokens(x, slice(split, None), **states_of(first)))
    assert_same(second | {"o": torch.cat([first["o"], second["o"]], 1)}, whole)


@every_call
def test_prefill_then_one_token_at_a_time(case: Case) -> None:
    x = make_inputs(replace(case, T=20))
    whole = public_call(case, x)
    part = public_call(case, tokens(x, slice(0, 15)))
    o = [part["o"]]
    for t in range(15, 20):
        part = public_call(case, tokens(x, slice(t, t + 1), **states_of(part)))
        o.append(part["o"])
    assert_same(part | {"o": torch.cat(o, 1)}, whole)


@every_call
def test_packed_is_each_sequence_alone(case: Case) -> None:
    packed = replace(case, lens=PACKED)
    x = make_inputs(packed)
    weights = make_weights(packed, public_call(packed, x))
    got = evaluate(public_call, packed, x, weights=weights)
    alone: dict[str, list[Tensor]] = {}
    for i, (_, span) in enumerate(packed.sequences):
        own = replace(case, B=1, T=span.stop - span.start)
        pick = {
            n: t[i : i + 1] if "initial" in n else t[:, span] if n in TIMED else t
            for n, t in x.items()
        }
        seeds = {n: t[:, span] if n == "o" else t[i : i + 1] for n, t in weights.items()}
        for name, t in evaluate(public_call, own, pick, weights=seeds).items():
            alone.setdefault(name, []).append(t)
    joined = {}
    for name, parts in alone.items():
        source = name.removeprefix("d")
        if name == "o" or source in TIMED:
            joined[name] = torch.cat(parts, 1)
        elif "state" in name or name.endswith("_z"):
            joined[name] = torch.cat(parts)
        else:  # parameters that all sequences share
            joined[name] = torch.stack(parts).sum(0)
    assert_same(got, joined)


@pytest.mark.parametrize(
    "case", [c for c in CALLS.values() if c.contract not in ("linear_attn", "delta_rule")]
)
def test_value_major_states_are_transposed_ones(case: Case) -> None:
    plain, other = (replace(case, flags=f) for f in _layouts(case))
    x = make_inputs(plain)
    turned = x | {"initial_state": x["initial_state"].transpose(-1, -2)}
    weights = make_weights(plain, public_call(plain, x))
    turned_weights = weights | {"final_state": weights["final_state"].transpose(-1, -2)}
    want = evaluate(public_call, plain, x, weights=weights)
    got = evaluate(public_call, other, turned, weights=turned_weights)
    for name in ("final_state", "dinitial_state"):
        got[name] = got[name].transpose(-1, -2)
    assert_same(got, want)


def _layouts(case: Case) -> tuple[tuple[str, ...], tuple[str, ...]]:
    plain = tuple(flag for flag in case.flags if flag != "state_v_first")
    return plain, (*plain, "state_v_first")


@every_call
def test_rows_of_a_batch_are_calls_of_their_own(case: Case) -> None:
    x = make_inputs(replace(case, T=20, B=3))
    whole = public_call(case, x)
    for row in range(3):
        shared = ("A_log", "dt_bias", "g_gamma")
        alone = public_call(case, {n: t if n in shared else t[row : row + 1] for n, t in x.items()})
        assert_same(alone, {n: t[row : row + 1] for n, t in whole.items()})


@every_call
def test_the_past_ignores_the_future(case: Case) -> None:
    x = make_inputs(replace(case, T=70))
    changed = {n: t.clone() for n, t in x.items()}
    for name in TIMED:
        if name in changed:
            changed[name][:, 33:] *= 0.5
    want, got = public_call(case, x)["o"], public_call(case, changed)["o"]
    torch.testing.assert_close(got[:, :33], want[:, :33], rtol=0, atol=1e-13)
    assert not torch.equal(got[:, 33:], want[:, 33:])


@every_call
def test_one_tensor_may_play_several_parts(case: Case) -> None:
    """q, k and v may be the same object; its gradient is the sum of theirs."""
    same = replace(case, K=4, V=4, H=case.HV)
    x = make_inputs(same)
    shared = x["k"].clone()
    apart = evaluate(public_call, same, x | {"q": shared, "k": shared, "v": shared})
    leaf = shared.clone().requires_grad_()
    outputs = public_call(same, x | {"q": leaf, "k": leaf, "v": leaf})
    weights = make_weights(same, outputs)
    torch.autograd.backward(list(outputs.values()), [weights[n] for n in outputs])
    torch.testing.assert_close(
        leaf.grad, apart["dq"] + apart["dk"] + apart["dv"], rtol=0, atol=1e-11
    )


@every_call
def test_repeating_a_call_repeats_every_bit(case: Case) -> None:
    narrow = replace(case, T=33, dtype=torch.bfloat16)
    x = make_inputs(narrow)
    first = evaluate(public_call, narrow, x)
    for _ in range(3):
        again = evaluate(public_call, narrow, x)
        assert all(torch.equal(first[name], again[name]) for name in first)
