"""Autograd: what has a gradient, in which dtype, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from op_cases import Case, keywords, make_inputs, public_call, with_strides
from op_compare import evaluate, make_weights
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from fakes import domain, implementation, plugin
from fla_core import ops
from fla_core.dispatch import use
from fla_core.dispatch.runtime import sandbox
from fla_core.errors import FlaError, UnsupportedError

STATE = ("initial_state",)
SMALL = {"B": 1, "T": 5, "K": 3, "V": 2}
SUBSETS = {
    "linear": Case("chunk_linear_attn", STATE, **SMALL),
    "normalised": Case(
        "fused_recurrent_linear_attn",
        ("initial_state", "initial_z"),
        ("final_state", "normalize", "reverse"),
        **SMALL,
    ),
    "simple_gla": Case("chunk_simple_gla", ("g", "g_gamma", *STATE), **SMALL),
    "gla": Case("fused_recurrent_gla", ("gk", "gv", *STATE), **SMALL),
    "delta": Case("chunk_delta_rule", ("beta", *STATE), ("final_state", "l2norm"), **SMALL),
    "gdn": Case("chunk_gdn", ("g", "beta", *STATE), HV=4, **SMALL),
    "kda": Case("fused_recurrent_kda", ("beta", *STATE), **SMALL),
    "gdn2": Case("chunk_gdn2", STATE, HV=4, **SMALL),
}
KERNEL_GATES = ("final_state", "gate", "beta_sigmoid", "l2norm", "state_v_first")
FUSED = {
    "gdn": Case("chunk_gdn", ("g", "beta", "A_log", "dt_bias", *STATE), KERNEL_GATES, HV=4),
    "kda": Case("chunk_kda", ("beta", "A_log", "dt_bias", *STATE), KERNEL_GATES, HV=4),
}
#: One call of each way through the autograd node: bare, lowered, lifted, packed.
WAYS = {
    "bare": Case("chunk_simple_gla", ("g", *STATE)),
    "lowered": FUSED["kda"],
    "lifted by value": Case(
        "chunk_linear_attn", ("initial_state", "initial_z"), ("final_state", "normalize")
    ),
    "packed, reversed": Case(
        "fused_recurrent_simple_gla",
        ("g", "g_gamma", *STATE),
        ("final_state", "reverse", "state_v_first"),
        lens=(3, 0, 9),
    ),
}
every_way = pytest.mark.parametrize("case", WAYS.values(), ids=WAYS)


def leaves(case: Case) -> dict[str, Tensor]:
    return {n: x.requires_grad_() for n, x in make_inputs(case).items()}


def total(outputs: dict[str, Tensor], power: int = 1) -> Tensor:
    return sum(
        (x.float() if x.dtype != torch.float64 else x).pow(power).sum() for x in outputs.values()
    )  # type: ignore[return-value]


def subsets(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for count in range(len(names) + 1):
        yield from combinations(names, count)


@pytest.mark.parametrize("case", SUBSETS.values(), ids=SUBSETS)
def test_every_subset_of_inputs_may_need_gradients(case: Case) -> None:
    inputs = make_inputs(case)
    want = evaluate(public_call, case, inputs)
    for needs in subsets(case.given):
        given = {n: x.detach().requires_grad_(n in needs) for n, x in inputs.items()}
        outputs = public_call(case, given)
        assert all(x.requires_grad == bool(needs) for x in outputs.values())
        if not needs:
            continue
        weights = make_weights(case, outputs)
        torch.autograd.backward(list(outputs.values()), [weights[n] for n in outputs])
        for name, leaf in given.items():
            if name in needs:
                torch.testing.assert_close(leaf.grad, want[f"d{name}"], rtol=0, atol=1e-12)
            else:
                assert leaf.grad is None


@pytest.mark.parametrize("case", FUSED.values(), ids=FUSED)
def test_one_or_all_but_one_input_of_a_fused_call(case: Case) -> None:
    inputs = make_inputs(case)
    want = evaluate(public_call, case, inputs)
    for name in case.given:
        for needs in ({name}, set(case.given) - {name}):
            got = evaluate(public_call, case, inputs, needs=needs)
            assert got.keys() - want.keys() == set()
            for key, value in got.items():
                torch.testing.assert_close(value, want[key], rtol=0, atol=1e-12)


@every_way
@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward outside"])
def test_autocast_casts_q_k_v_and_nothing_else(case: Case, inside: bool) -> None:
    case = replace(case, dtype=torch.float32)
    wide = make_inputs(case)
    narrow = {n: x.bfloat16() if n in ("q", "k", "v") else x for n, x in wide.items()}
    want = evaluate(public_call, case, narrow)
    given = {n: x.requires_grad_() for n, x in wide.items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = public_call(case, given)
        weights = make_weights(case, outputs)
        seeds = [weights[n] for n in outputs]
        if inside:
            torch.autograd.backward(list(outputs.values()), seeds)
    if not inside:
        torch.autograd.backward(list(outputs.values()), seeds)
    for name, x in outputs.items():
        assert x.dtype == want[name].dtype
        assert torch.equal(x, want[name]), name
    for name, leaf in given.items():
        assert leaf.grad is not None
        assert leaf.grad.dtype == torch.float32
        assert torch.equal(leaf.grad, want[f"d{name}"].float()), name


def test_autocast_leaves_float64_alone() -> None:
    case = WAYS["bare"]
    want = public_call(case, make_inputs(case))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = public_call(case, make_inputs(case))
    assert all(torch.equal(got[n], want[n]) for n in want)


def test_autocast_leaves_attention_weights_exact() -> None:
    case = Case("parallel_simple_gla", ("g",), (), dtype=torch.float32)
    x = make_inputs(case)
    _, want = ops.parallel_simple_gla(**x, output_attentions=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, got = ops.parallel_simple_gla(**x, output_attentions=True)
    assert torch.equal(got, want)


@every_way
def test_create_graph_alone_changes_nothing(case: Case) -> None:
    given = leaves(case)
    plain = torch.autograd.grad(total(public_call(case, given)), [*given.values()])
    graph = torch.autograd.grad(
        total(public_call(case, given)), [*given.values()], create_graph=True
    )
    for left, right in zip(plain, graph, strict=True):
        assert torch.equal(left, right)


@every_way
def test_a_second_order_gradient_is_refused(case: Case) -> None:
    """Whichever gradient is differentiated, by whichever input, alone or inside a penalty."""
    given = leaves(case)
    for name, leaf in given.items():
        grads = torch.autograd.grad(
            total(public_call(case, given), 2), [*given.values()], create_graph=True
        )
        penalty = sum(g.square().sum() for g in grads) + leaf.sum()
        with pytest.raises(UnsupportedError, match="second order"):
            torch.autograd.grad(penalty, leaf, retain_graph=True)
        with pytest.raises(UnsupportedError, match="second order"):
            penalty.backward()  # type: ignore[union-attr]
        assert all(x.grad is None for x in given.values()), name


def test_a_gradient_is_not_differentiable_by_an_incoming_gradient() -> None:
    given = leaves(WAYS["bare"])
    o = public_call(WAYS["bare"], given)["o"]
    seed = torch.ones_like(o).requires_grad_()
    (dq,) = torch.autograd.grad(o, given["q"], seed, create_graph=True)
    with pytest.raises(UnsupportedError, match="second order"):
        torch.autograd.grad(dq.sum(), seed)


def hessian(f: Callable[[Tensor], Tensor], q: Tensor) -> Any:
    return torch.autograd.functional.hessian(f, q)


def dual(f: Callable[[Tensor], Tensor], q: Tensor) -> Any:
    with forward_ad.dual_level():
        return f(forward_ad.make_dual(q, torch.ones_like(q)))


def batched(f: Callable[[Tensor], Tensor], q: Tensor) -> Any:
    several = torch.ones(2)
    q = q.detach().requires_grad_()
    return torch.autograd.grad(f(q), q, several, is_grads_batched=True)


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "forward mode": dual,
    "hessian": hessian,
    "func.grad": lambda f, q: torch.func.grad(f)(q),
    "func.vjp": lambda f, q: torch.func.vjp(f, q),
    "func.jvp": lambda f, q: torch.func.jvp(f, (q,), (q,)),
    "func.jacrev": lambda f, q: torch.func.jacrev(f)(q),
    "vmap": lambda f, q: torch.func.vmap(f)(torch.stack([q, q])),
    "batched gradients": batched,
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("op", ["chunk_simple_gla", "chunk_retention", "chunk_lightning_attn"])
def test_other_ways_to_differentiate_are_refused(op: str, name: str) -> None:
    """And leave nothing behind, neither in plans nor in cached decays."""
    case = Case(op, H=7)  # heads no other test has, so that a cached decay is made here
    inputs = make_inputs(case)

    def function(q: Tensor) -> Tensor:
        return public_call(case, inputs | {"q": q})["o"].sum()

    with pytest.raises(UnsupportedError):
        TRANSFORMS[name](function, inputs["q"])
    assert public_call(case, inputs)["o"].isfinite().all()
    assert evaluate(public_call, case, inputs)["dq"].isfinite().all()


def test_a_dual_level_without_dual_inputs_is_no_obstacle() -> None:
    case = WAYS["bare"]
    with forward_ad.dual_level():
        assert public_call(case, make_inputs(case))["o"].isfinite().all()


@every_way
def test_what_a_transform_left_behind_is_a_tensor_like_any_other(case: Case) -> None:
    inputs = make_inputs(case)
    for name, x in inputs.items():
        left: list[Tensor] = []
        torch.func.grad(lambda y, left=left: left.append(y) or y.sum())(x)
        others = {n: y.detach().requires_grad_() for n, y in inputs.items() if n != name}
        o = public_call(case, {n: left[0] if n == name else others[n] for n in inputs})["o"]
        assert torch.equal(o, public_call(case, inputs)["o"]), name
        o.sum().backward()
        assert all(y.grad is not None for y in others.values())


@pytest.mark.parametrize("name", [name for name, case in WAYS.items() if case.lens is None])
def test_fake_gradients_and_real_ones_do_not_meet(name: str) -> None:
    """Packed calls are left out: boundaries without data are refused."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    case = WAYS[name]

    def train(given: dict[str, Tensor]) -> dict[str, Tensor | None]:
        public_call(case, given)["o"].sum().backward()
        return {n: x.grad for n, x in given.items()}

    def faked() -> dict[str, Tensor | None]:
        with FakeTensorMode():
            return train(
                {n: torch.empty_like(x, requires_grad=True) for n, x in make_inputs(case).items()}
            )

    fake = faked()
    real = train(leaves(case))
    assert {n: x.shape for n, x in faked().items()} == {n: x.shape for n, x in fake.items()}
    again = train(leaves(case))
    assert all(torch.equal(again[n], real[n]) for n in real)


def test_fake_tensors_leave_nothing_behind() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    case = Case("chunk_retention", (), ("final_state",), H=11)
    with FakeTensorMode():
        fake = {n: torch.empty(x.shape, dtype=x.dtype) for n, x in make_inputs(case).items()}
        shapes = {n: x.shape for n, x in public_call(case, fake).items()}
    real = public_call(case, make_inputs(case))
    assert shapes == {n: x.shape for n, x in real.items()}
    with FakeTensorMode():
        fake = {n: torch.empty(x.shape, dtype=x.dtype) for n, x in make_inputs(case).items()}
        public_call(case, fake)


@every_way
def test_inference_mode(case: Case) -> None:
    want = public_call(case, make_inputs(case))
    with torch.inference_mode():
        got = public_call(case, make_inputs(case))
    for name, x in got.items():
        assert x.is_inference()
        assert torch.equal(x, want[name])
    given = leaves(case)
    with torch.inference_mode():
        assert not any(x.requires_grad for x in public_call(case, given).values())
    assert all(x.requires_grad for x in public_call(case, given).values())


def test_gradients_asked_for_in_inference_mode_leave_nothing_behind() -> None:
    """Torch refuses them; what the core keeps of a signature must not be of that mode."""
    case = Case("chunk_simple_gla", H=17)  # as in no other test, so that no call came before
    given = leaves(case)
    refused = pytest.raises(RuntimeError, match="Inference tensors cannot be saved")
    with refused, torch.inference_mode(), torch.enable_grad():
        public_call(case, given)
    assert evaluate(public_call, case, make_inputs(case))["dq"].isfinite().all()


@pytest.mark.parametrize("op", ["chunk_retention", "chunk_lightning_attn"])
def test_decays_made_in_inference_mode_serve_training(op: str) -> None:
    case = Case(op, H=13)
    with torch.inference_mode():
        public_call(case, make_inputs(case))
    assert evaluate(public_call, case, make_inputs(case))["dq"].isfinite().all()


@every_way
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_repeats_the_gradients(case: Case, reentrant: bool) -> None:
    want, got = leaves(case), leaves(case)
    total(public_call(case, want), 2).backward()
    names = list(got)

    def block(*tensors: Tensor) -> Tensor:
        return total(public_call(case, dict(zip(names, tensors, strict=True))), 2)

    checkpoint(block, *got.values(), use_reentrant=reentrant).backward()
    for name in names:
        assert torch.equal(got[name].grad, want[name].grad), name


@every_way
def test_saved_tensors_may_be_kept_elsewhere(case: Case) -> None:
    want, got = leaves(case), leaves(case)
    total(public_call(case, want)).backward()
    with torch.autograd.graph.save_on_cpu():
        loss = total(public_call(case, got))
    loss.backward()
    assert all(torch.equal(got[n].grad, want[n].grad) for n in got)


@every_way
def test_an_input_changed_before_backward_is_noticed(case: Case) -> None:
    for name in case.given:
        given = make_inputs(case)
        first = "q" if name != "q" else "k"
        given[first].requires_grad_()
        loss = total(public_call(case, given))
        given[name].add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_boundaries_changed_before_backward_are_noticed() -> None:
    case = WAYS["packed, reversed"]
    given = leaves(case)
    cu = torch.tensor(case.bounds)
    loss = total(public_call(case, given, cu_seqlens=cu))
    cu[1] = 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@every_way
def test_backward_runs_twice_or_says_why_not(case: Case) -> None:
    given = leaves(case)
    loss = total(public_call(case, given))
    loss.backward(retain_graph=True)
    once = {n: x.grad.clone() for n, x in given.items()}
    loss.backward()
    assert all(torch.equal(given[n].grad, 2 * once[n]) for n in given)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@every_way
def test_incoming_gradients_may_have_any_strides(case: Case) -> None:
    inputs = make_inputs(case)
    outputs = public_call(case, inputs)
    rows = {n: x[..., :1] for n, x in make_weights(case, outputs).items()}
    expanded = {n: rows[n].expand(outputs[n].shape) for n in rows}
    want = evaluate(
        public_call, case, inputs, weights={n: x.contiguous() for n, x in expanded.items()}
    )
    turned = {
        n: x.contiguous().transpose(0, -1).contiguous().transpose(0, -1)
        for n, x in expanded.items()
    }
    sliced = {n: with_strides(x) for n, x in expanded.items()}
    for weights in (expanded, turned, sliced):
        got = evaluate(public_call, case, inputs, weights=weights)
        for name in want:
            torch.testing.assert_close(got[name], want[name], rtol=0, atol=1e-13)


@pytest.mark.parametrize("strided", [False, True])
def test_an_incoming_gradient_that_is_a_lazy_minus_is_written_out(strided: bool) -> None:
    """As is that of an imaginary part behind a conjugation: kernels would read it without minus."""
    seen: list[Tensor] = []

    def backward(call: Any, residuals: Any, grads: Any, needs: Any) -> dict[str, Tensor]:
        seen.extend(grads)
        return {name: torch.zeros_like(call.tensors[name]) for name in needs}

    made = implementation(
        "simple_gla",
        forward=lambda call, save: ((call.v.clone(),), ()),
        backward=backward,
        domain=domain("g"),
        strided=strided,
    )
    x, weight = torch.ones(1, 3, 1, 4), torch.randn(1, 3, 1, 4, dtype=torch.complex64)
    x.requires_grad_()
    with sandbox(plugin("acme", made, targets=("cpu",))):
        o, _ = ops.chunk_simple_gla(x, x, x, output_final_state=False)
        (torch.complex(torch.zeros_like(o), o).conj() * weight).real.sum().backward()
    (grad,) = seen
    assert not grad.is_neg()
    torch.testing.assert_close(grad, weight.imag)


@every_way
def test_inputs_may_have_any_strides(case: Case) -> None:
    """Expanded over the batch and heads, transposed, sliced: the values are what counts."""
    inputs = make_inputs(case)
    if case.lens is None:
        inputs = {n: x[:1].expand(x.shape) if x.dim() > 2 else x for n, x in inputs.items()}
    want = evaluate(public_call, case, {n: x.contiguous() for n, x in inputs.items()})
    turned = {
        n: x.contiguous().transpose(0, -1).contiguous().transpose(0, -1) for n, x in inputs.items()
    }
    for views in (inputs, turned, {n: with_strides(x) for n, x in inputs.items()}):
        got = evaluate(public_call, case, views)
        for name in want:
            torch.testing.assert_close(got[name], want[name], rtol=0, atol=1e-12)


@every_way
def test_backward_keeps_the_plan_of_forward(case: Case) -> None:
    """Whatever the policy says by then."""
    want, got = leaves(case), leaves(case)
    total(public_call(case, want)).backward()
    loss = total(public_call(case, got))
    with use("nonesuch"):
        with pytest.raises(FlaError):
            public_call(case, got)
        loss.backward()
    assert all(torch.equal(got[n].grad, want[n].grad) for n in got)


def test_keyword_and_context_select_alike() -> None:
    case = WAYS["bare"]
    given = keywords(case, make_inputs(case))
    with use("nonesuch"):
        assert ops.chunk_simple_gla(**given, backend="reference")[0].isfinite().all()
        with pytest.raises(FlaError, match="nonesuch"):
            ops.chunk_simple_gla(**given)
        with use("reference"):
            ops.chunk_simple_gla(**given)
    with pytest.raises(FlaError, match="nonesuch"):
        ops.chunk_simple_gla(**given, backend="nonesuch")
