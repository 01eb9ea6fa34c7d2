"""Every row of the page on differences has a test of what it says of this project."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fla_core import ops
from fla_core.errors import ContractError, DtypeError, RemovedKeywordError, UnsupportedError
from pages import DOCS

TESTED: set[str] = set()
Test = Callable[[], None]


def row(topic: str) -> Callable[[Test], Test]:
    """The test of a row, named by its first cell."""
    TESTED.add(topic)
    return lambda function: function


def qkv(heads: int = 2, dtype: torch.dtype = torch.float32, size: int = 8) -> list[Tensor]:
    torch.manual_seed(0)
    made = (torch.randn(1, 12, h, size) for h in (2, 2, heads))
    return [torch.nn.functional.normalize(x, dim=-1).to(dtype) for x in made]


def gate(*shape: int) -> Tensor:
    return -torch.rand(1, 12, *shape)


def kda(**keywords: Any) -> Any:
    return ops.chunk_kda(*qkv(), gate(2, 8), torch.rand(1, 12, 2), **keywords)


def gradients(function: Callable[..., Any], *inputs: Tensor, **keywords: Any) -> list[Tensor]:
    leaves = [x.requires_grad_() for x in inputs]
    return list(torch.autograd.grad(function(*leaves, **keywords)[0].square().sum(), leaves))


@row("fused_recurrent_gated_delta_rule")
def test_recurrent_gdn_has_gradients() -> None:
    inputs = (*qkv(), gate(2))
    recurrent = gradients(ops.fused_recurrent_gated_delta_rule, *inputs, beta=torch.ones(1, 12, 2))
    chunked = gradients(lambda q, k, v, g: ops.chunk_gdn(q, k, v, g, torch.ones(1, 12, 2)), *inputs)
    torch.testing.assert_close(recurrent, chunked)


@row("fused_recurrent_kda")
def test_recurrent_kda_has_gradients() -> None:
    inputs = (*qkv(), gate(2, 8), torch.rand(1, 12, 2))
    torch.testing.assert_close(
        gradients(ops.fused_recurrent_kda, *inputs), gradients(ops.chunk_kda, *inputs)
    )


@row("fused_recurrent_gdn2")
def test_recurrent_gdn2_has_gradients() -> None:
    inputs = (*qkv(), gate(2, 8), torch.rand(1, 12, 2, 8), torch.rand(1, 12, 2, 8))
    torch.testing.assert_close(
        gradients(ops.fused_recurrent_gdn2, *inputs), gradients(ops.chunk_gdn2, *inputs)
    )


@row("g_gamma")
def test_g_gamma_has_a_gradient() -> None:
    def fixed(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor) -> Any:
        return ops.chunk_simple_gla(q, k, v, g_gamma=gamma)

    def spread(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor) -> Any:
        return ops.chunk_simple_gla(q, k, v, gamma.expand(1, 12, 2))

    inputs = (*qkv(), -torch.rand(2))
    found = gradients(fixed, *inputs)
    assert found[-1].abs().min() > 0
    torch.testing.assert_close(found, gradients(spread, *inputs))


@row("attention weights")
def test_attention_weights_are_differentiable() -> None:
    q, k, v = (x.requires_grad_() for x in qkv())
    _, weights = ops.parallel_retention(q, k, v, output_attentions=True)
    (found,) = torch.autograd.grad(weights.sum(), q)
    assert found.abs().max() > 0


@row("second-order gradients")
def test_second_order_is_refused() -> None:
    q, k, v = (x.requires_grad_() for x in qkv())
    (first,) = torch.autograd.grad(
        ops.chunk_retention(q, k, v)[0].square().sum(), q, create_graph=True
    )
    with pytest.raises(UnsupportedError, match="second order"):
        torch.autograd.grad(first.sum(), k)


@row("torch.compile")
def test_one_graph() -> None:
    torch._dynamo.reset()
    explanation = torch._dynamo.explain(lambda q, k, v: ops.chunk_retention(q, k, v)[0])(*qkv())
    assert explanation.graph_count == 1
    assert explanation.graph_break_count == 0


@row("unknown keywords")
def test_unknown_keywords() -> None:
    with pytest.raises(TypeError, match="did you mean 'use_gate_in_kernel'"):
        kda(use_gate_in_kernels=True)


@row("head_first")
def test_head_first() -> None:
    with pytest.raises(RemovedKeywordError, match="head_first") as caught:
        ops.chunk_retention(*qkv(), head_first=False)
    assert isinstance(caught.value, DeprecationWarning)
    assert isinstance(caught.value, ValueError)


@row("transpose_state_layout")
def test_the_old_name_of_state_v_first() -> None:
    calls = (
        lambda **k: ops.chunk_simple_gla(*qkv(), output_final_state=True, **k),
        lambda **k: ops.chunk_retention(*qkv(), output_final_state=True, **k),
        lambda **k: ops.chunk_lightning_attn(*qkv(), 0, 2, output_final_state=True, **k),
    )
    for call in calls:
        with pytest.warns(DeprecationWarning, match="state_v_first"):
            turned = call(transpose_state_layout=True)[1]
        torch.testing.assert_close(turned, call()[1].transpose(-1, -2))


@row("A_log, dt_bias without the gate")
def test_gate_parameters_without_the_gate() -> None:
    for name, size in (("A_log", 2), ("dt_bias", 16)):
        with pytest.raises(ContractError, match="use_gate_in_kernel=True"):
            kda(**{name: torch.zeros(size)})


@row("gate without A_log and bound")
def test_gate_without_its_parameters() -> None:
    with pytest.raises(ContractError, match="'A_log'"):
        ops.fused_recurrent_kda(*qkv(), gate(2, 8), torch.rand(1, 12, 2), use_gate_in_kernel=True)


@row("lower_bound")
def test_lower_bound() -> None:
    on = {"use_gate_in_kernel": True, "A_log": torch.zeros(2)}
    for bound in (0.0, 1.0, float("-inf"), float("nan")):
        with pytest.raises(ContractError, match="finite number below 0"):
            kda(lower_bound=bound, **on)
    with pytest.raises(ContractError, match=r"\[-5, 0\)"):
        kda(lower_bound=-6.0, safe_gate=True, **on)
    kda(lower_bound=-6.0, **on)


@row("g and g_gamma together")
def test_g_and_g_gamma_add() -> None:
    g, gamma = gate(2), -torch.rand(2)
    both, _ = ops.chunk_simple_gla(*qkv(), g, gamma)
    torch.testing.assert_close(both, ops.chunk_simple_gla(*qkv(), g + gamma)[0])
    with pytest.raises(ContractError, match="not both"):
        ops.fused_chunk_simple_gla(*qkv(), g, gamma)


@row("chunk_size")
def test_chunk_size_is_a_hint() -> None:
    torch.testing.assert_close(kda(chunk_size=32)[0], kda(chunk_size=64)[0])
    for call, size in ((kda, 16), (lambda **k: ops.chunk_retention(*qkv(), **k), 48)):
        with pytest.raises(ContractError, match="chunk_size"):
            call(chunk_size=size)
    with torch.no_grad():
        long = [torch.randn(1, 128, 2, 8) for _ in range(3)]
        args = (*long, -torch.rand(1, 128, 2, 8), torch.rand(1, 128, 2))
        states = [
            ops.chunk_kda(*args, chunk_size=size, return_intermediate_states=True)[2]
            for size in (32, 64)
        ]
    torch.testing.assert_close(states[0][:, ::2], states[1])


@row("disable_recompute")
def test_disable_recompute_changes_nothing() -> None:
    kept: list[int] = []

    def differentiated(**keywords: Any) -> list[Tensor]:
        sizes: list[int] = []

        def pack(x: Tensor) -> Tensor:
            sizes.append(x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            inputs = (*qkv(), gate(2, 8), torch.full((1, 12, 2), 0.5))
            found = gradients(ops.chunk_kda, *inputs, **keywords)
        kept.append(sum(sizes))
        return found

    asked = differentiated(disable_recompute=True)
    torch.testing.assert_close(asked, differentiated(), rtol=0, atol=0)
    assert kept[0] == kept[1] > 0


@row("scale")
def test_any_finite_scale() -> None:
    negative, _ = ops.fused_recurrent_delta_rule(*qkv(), scale=-1.0)
    torch.testing.assert_close(negative, -ops.fused_recurrent_delta_rule(*qkv(), scale=1.0)[0])
    with pytest.raises(ContractError, match="finite"):
        ops.fused_recurrent_delta_rule(*qkv(), scale=float("inf"))


@row("value heads")
def test_value_heads_are_a_multiple() -> None:
    with pytest.raises(ContractError, match="H divides HV"):
        ops.fused_recurrent_gated_delta_rule(*qkv(heads=3))


@row("beta=None under grouped heads")
def test_default_beta_under_grouped_heads() -> None:
    o, _ = ops.fused_recurrent_gated_delta_rule(*qkv(heads=4))
    ones = torch.ones(1, 12, 4)
    torch.testing.assert_close(o, ops.fused_recurrent_gated_delta_rule(*qkv(heads=4), beta=ones)[0])


@row("grouped value heads of chunk_gdn2")
def test_grouped_value_heads_of_gdn2() -> None:
    inputs = (*qkv(heads=4), gate(4, 8), torch.rand(1, 12, 4, 8), torch.rand(1, 12, 4, 8))
    torch.testing.assert_close(ops.chunk_gdn2(*inputs), ops.fused_recurrent_gdn2(*inputs))


@row("beta for each value channel")
def test_beta_for_each_value_channel() -> None:
    beta = torch.rand(1, 12, 2)
    wide = beta[..., None].expand(1, 12, 2, 8)
    calls = (
        lambda b: ops.chunk_delta_rule(*qkv(), b),
        lambda b: ops.chunk_gdn(*qkv(), gate(2), b),
        lambda b: ops.chunk_kda(*qkv(), gate(2, 8), b),
    )
    for call in calls:
        torch.manual_seed(1)
        narrow = call(beta)[0]
        torch.manual_seed(1)
        torch.testing.assert_close(call(wide)[0], narrow)


@row("K above 256")
def test_large_keys() -> None:
    q, k, v = qkv(size=264)
    o, _ = ops.chunk_kda(q, k, v, gate(2, 264), torch.rand(1, 12, 2))
    assert o.isfinite().all()


@row("chunk_indices")
def test_chunk_indices() -> None:
    inputs = (*qkv(), gate(2), torch.rand(1, 12, 2))
    o, _ = ops.chunk_gdn(*inputs, chunk_indices=torch.tensor([[7, 7]]))
    torch.testing.assert_close(o, ops.chunk_gdn(*inputs)[0])
    with pytest.raises(ContractError, match="chunk_indices"):
        ops.chunk_gdn(*inputs, chunk_indices=torch.zeros(3))


@row("cp_context")
def test_cp_context() -> None:
    with pytest.raises(UnsupportedError, match="cp_context"):
        kda(cp_context=object())


@row("return_intermediate_states")
def test_intermediate_states() -> None:
    with torch.no_grad():
        assert kda(return_intermediate_states=True)[2].shape == (1, 1, 2, 8, 8)
    assert len(kda(return_intermediate_states=True)) == 3
    q, k, v = qkv()
    with pytest.raises(ContractError, match="return_intermediate_states"):
        ops.chunk_kda(
            q.requires_grad_(),
            k,
            v,
            gate(2, 8),
            torch.rand(1, 12, 2),
            return_intermediate_states=True,
        )


@row("float32 in chunk_delta_rule")
def test_float32_delta_rule() -> None:
    o, _ = ops.chunk_delta_rule(*qkv(), torch.rand(1, 12, 2))
    assert o.dtype == torch.float32


@row("float64")
def test_float64() -> None:
    o, state = ops.chunk_retention(*qkv(dtype=torch.float64), output_final_state=True)
    assert o.dtype == state.dtype == torch.float64


@row("16-bit initial states")
def test_narrow_states_are_widened() -> None:
    half = torch.randn(1, 2, 8, 8).bfloat16()
    decay, beta, write = gate(2, 8), torch.rand(1, 12, 2), torch.rand(1, 12, 2, 8)
    for call in (
        lambda **k: ops.chunk_gla(*qkv(), torch.zeros(1, 12, 2, 8), output_final_state=True, **k),
        lambda **k: ops.chunk_retention(*qkv(), output_final_state=True, **k),
        lambda **k: ops.chunk_kda(*qkv(), decay, beta, output_final_state=True, **k),
        lambda **k: ops.chunk_gdn2(*qkv(), decay, decay.exp(), write, output_final_state=True, **k),
    ):
        narrow, wide = call(initial_state=half), call(initial_state=half.float())
        assert narrow[1].dtype == torch.float32
        torch.testing.assert_close(narrow, wide)


@row("z of linear_attn")
def test_z_is_wide() -> None:
    q, k, v = qkv(dtype=torch.bfloat16)
    _, (state, z) = ops.chunk_linear_attn(q.exp(), k.exp(), v)
    assert state is None
    assert z.dtype == torch.float32


@row("mixed q, k, v")
def test_mixed_dtypes() -> None:
    q, k, v = qkv()
    with pytest.raises(DtypeError, match="the dtype of q"):
        ops.chunk_retention(q.bfloat16(), k, v)
    with torch.autocast("cpu", torch.bfloat16):
        assert ops.chunk_retention(q.bfloat16(), k, v)[0].dtype == torch.bfloat16


@row("fused_chunk_gla, fused_chunk_delta_rule")
def test_fused_chunk_names_work() -> None:
    beta, g = torch.rand(1, 12, 2), gate(2, 8)
    pairs = (
        (ops.fused_chunk_delta_rule, ops.chunk_delta_rule, beta),
        (ops.fused_chunk_gla, ops.chunk_gla, g),
    )
    for fused, chunk, last in pairs:
        torch.testing.assert_close(fused(*qkv(), last)[0], chunk(*qkv(), last)[0])


@row("kind of errors")
def test_errors_carry_their_facts() -> None:
    q, k, v = qkv()
    with pytest.raises(ValueError, match="argument 'k'") as caught:
        ops.chunk_retention(q, k[:, :3], v)
    error = caught.value
    assert isinstance(error, ContractError)
    assert (error.argument, error.got) == ("k", "shape [1, 3, 2, 8]")


@row("cu_seqlens")
def test_boundaries_are_checked_by_value() -> None:
    for bounds, text in (
        ([1, 12], "start at 0"),
        ([0, 9, 4, 12], "never fall"),
        ([0, 11], "end at T = 12"),
    ):
        with pytest.raises(ContractError, match=text):
            ops.chunk_retention(*qkv(), cu_seqlens=torch.tensor(bounds))


@row("cu_seqlens_cpu")
def test_the_host_copy_is_compared() -> None:
    device, host = torch.tensor([0, 5, 12]), torch.tensor([0, 6, 12])
    with pytest.raises(ContractError, match="cu_seqlens_cpu"):
        ops.chunk_simple_gla(*qkv(), cu_seqlens=device, cu_seqlens_cpu=host)
    with pytest.raises(ContractError, match="cu_seqlens_cpu"):
        ops.chunk_simple_gla(*qkv(), cu_seqlens=device, cu_seqlens_cpu=host[:2])


@row("checks under dispatch")
def test_checks_come_before_any_backend() -> None:
    from example_plugins import acme
    from fla_core.dispatch.runtime import sandbox

    with sandbox(acme()), pytest.raises(ContractError, match="'g'"):
        ops.chunk_kda(*qkv(), gate(2), torch.rand(1, 12, 2), backend="acme")


def test_every_row_has_a_test_and_every_test_a_row() -> None:
    text = (DOCS / "differences.md").read_text(encoding="utf-8")
    topics = set(re.findall(r"^\| (.+?) \|", text, re.MULTILINE)) - {"topic"}
    assert topics == TESTED
