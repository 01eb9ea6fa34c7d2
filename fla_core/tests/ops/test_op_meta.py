"""Tensors without data: shapes and dtypes of a training step, and nothing computed."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from fakes import domain, implementation, plugin
from fla_core import ops
from fla_core.call import Call
from fla_core.contracts import KDA
from fla_core.dispatch.runtime import sandbox
from fla_core.errors import ContractError, ImplementationError, UnsupportedError


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("autocast", [False, True])
def test_a_training_step_on_the_meta_device(autocast: bool) -> None:
    q, k, v = (torch.empty(2, 70, 2, 8, device="meta", requires_grad=True) for _ in range(3))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        o, state = ops.chunk_retention(q, k, v, output_final_state=True)
        o.sum().backward()
    assert state is not None
    assert (o.shape, o.dtype, state.shape) == (v.shape, torch.float32, (2, 2, 8, 8))
    assert q.grad is not None
    assert q.grad.is_meta


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_packed_boundaries_without_data_are_refused(kind: str) -> None:
    mode, device = (nullcontext(), "meta") if kind == "meta" else (FakeTensorMode(), "cpu")
    with mode:
        q = torch.empty(1, 16, 2, 8, device=device)
        cu = torch.empty(4, dtype=torch.int64, device=device)
        with pytest.raises(UnsupportedError, match=r"boundaries without data[\s\S]*cu_seqlens_cpu"):
            ops.chunk_simple_gla(q, q, q, cu_seqlens=cu)
        o, _ = ops.chunk_simple_gla(q, q, q)
    assert o.shape == q.shape


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("grad", [False, True])
def test_packed_boundaries_on_the_host_serve_meta_tensors(grad: bool) -> None:
    host = torch.tensor([0, 5, 5, 16])
    q, k, v = (torch.empty(1, 16, 2, 8, device="meta", requires_grad=grad) for _ in range(3))
    for _ in range(2):
        o, state = ops.chunk_simple_gla(
            q, k, v, cu_seqlens=host.to("meta"), cu_seqlens_cpu=host, output_final_state=True
        )
    if grad:
        o.sum().backward()
    assert state is not None
    assert (o.shape, state.shape) == (v.shape, (3, 2, 8, 8))
    with pytest.raises(ContractError, match="boundaries that end at T = 16"):
        ops.chunk_simple_gla(q, k, v, cu_seqlens=host[:3].to("meta"), cu_seqlens_cpu=host[:3])


def test_a_fake_call_is_not_taken_for_the_first_real_one() -> None:
    def writes(call: Call, save: bool) -> object:
        if not isinstance(call.v, FakeTensor):
            call.v.add_(1)
        return (call.v.clone(),), ()

    made = implementation("linear_attn", forward=writes, domain=domain(), forms=("chunk",))
    with sandbox(plugin("one", made, targets=("cpu",))):
        with FakeTensorMode():
            x = torch.empty(1, 3, 1, 4)
            ops.chunk_linear_attn(x, x, x, normalize=False, backend="one")
        x = torch.ones(1, 3, 1, 4)
        with pytest.raises(ImplementationError, match="changed 'q' in place"):
            ops.chunk_linear_attn(x, x, x, normalize=False, backend="one")


def test_a_call_can_be_copied() -> None:
    call = Call(KDA, "chunk", {"q": torch.ones(1, 2, 1, 4)}, 1.0, frozenset())
    assert copy.copy(call).q is call.q
    assert torch.equal(copy.deepcopy(call).q, call.q)
