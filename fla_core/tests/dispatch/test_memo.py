"""What public operators keep of a signature goes with the plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fakes import domain, implementation, plugin
from fla_core import ops
from fla_core.dispatch.runtime import RUNTIME, sandbox

asked: list[Any] = []


def verifier(view: Any) -> Any:
    """Refuses, and meanwhile the plans are dropped, as another thread may have it at any time."""
    asked.append(view)
    RUNTIME.forget_plans()
    return False, "not now"


@pytest.mark.parametrize("compiled", [False, True])
def test_a_call_in_the_making_is_not_kept_when_plans_are_dropped(compiled: bool) -> None:
    changes = {"verifier": verifier, "domain": domain(), "forms": ("chunk",)}
    record = plugin("acme", implementation("linear_attn", **changes), targets=("cpu",))
    x = torch.ones(1, 3, 1, 4)
    call: Any = ops.chunk_linear_attn
    if compiled:
        torch.compiler.reset()
        call = torch.compile(call, fullgraph=True, backend="aot_eager")
    with sandbox(record):
        call(x, x, x, normalize=False)
        asked.clear()
        call(x, x, x, normalize=False)
    assert asked


def noted(call: Any, save: bool) -> Any:
    """Count the calls that share a memo, and note which they were."""
    call.memo["calls"] = [*call.memo.get("calls", []), call]
    asked.append(call.memo)
    return (call.v.clone(),), ()


def noted_backward(call: Any, residuals: Any, grads: Any, needs: Any) -> Any:
    asked.append(call.memo)
    return {name: torch.zeros_like(call.tensors[name]) for name in needs}


@pytest.fixture
def remembering() -> Any:
    """A plugin that wants contiguous tensors in the base form, and notes memos in ``asked``."""
    changes = {"forward": noted, "backward": noted_backward, "domain": domain("g")}
    asked.clear()
    with sandbox(plugin("acme", implementation("simple_gla", **changes), targets=("cpu",))):
        yield


def inputs(tokens: int = 3, requires_grad: bool = False) -> list[torch.Tensor]:
    return [torch.ones(1, tokens, 1, 4, requires_grad=requires_grad) for _ in "qkv"]


@pytest.mark.usefixtures("remembering")
def test_an_implementation_keeps_what_a_signature_settles() -> None:
    ops.chunk_simple_gla(*inputs())
    ops.chunk_simple_gla(*(x.expand(1, 3, 1, 4) for x in inputs()), scale=2.0)
    first, second = asked
    assert first is second
    assert [call.scale for call in first["calls"]] == [0.5, 2.0]


@pytest.mark.usefixtures("remembering")
def test_strides_and_lowerings_do_not_lose_it() -> None:
    for _ in range(2):
        strided = [x.transpose(0, 1) for x in (torch.ones(2, 3, 1, 4) for _ in "qkv")]
        ops.fused_recurrent_simple_gla(*strided, reverse=True, output_final_state=False)
        ops.chunk_simple_gla(*strided)
    lowered, strided_only, *again = asked
    assert lowered is not strided_only
    assert again[0] is lowered
    assert again[1] is strided_only


@pytest.mark.usefixtures("remembering")
def test_forward_and_backward_share_it() -> None:
    for _ in range(2):
        o, _ = ops.chunk_simple_gla(*inputs(requires_grad=True))
        o.sum().backward()
    assert len(asked) == 4
    assert all(memo is asked[0] for memo in asked)


@pytest.mark.usefixtures("remembering")
@pytest.mark.parametrize("drop", [False, True])
def test_signatures_have_their_own_and_it_goes_with_the_plans(drop: bool) -> None:
    ops.chunk_simple_gla(*inputs())
    if drop:
        RUNTIME.forget_plans()
        ops.chunk_simple_gla(*inputs())
    else:
        ops.chunk_simple_gla(*inputs(tokens=4))
        ops.chunk_simple_gla(*(x.double() for x in inputs()))
        ops.chunk_simple_gla(*inputs(requires_grad=True))
        ops.chunk_simple_gla(*inputs(), g=torch.zeros(1, 3, 1))
    assert all(len(memo["calls"]) == 1 for memo in asked)


@pytest.mark.usefixtures("remembering")
def test_calls_made_of_a_call_begin_with_none() -> None:
    ops.chunk_simple_gla(*inputs())
    (call,) = asked[0]["calls"]
    assert call.memo
    assert call.but(q=call.k).memo == replace(call, scale=1.0).memo == {}
