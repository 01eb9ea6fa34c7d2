"""Tensors without data: shapes and dtypes of a training step, and nothing computed."""

from __future__ import annotations

import copy

import pytest
import torch

from fla_core import ops
from fla_core.call import Call
from fla_core.contracts import KDA


@pytest.mark.filterwarnings("ignore::fla_core.errors.SelectionWarning")
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


def test_a_call_can_be_copied() -> None:
    call = Call(KDA, "chunk", {"q": torch.ones(1, 2, 1, 4)}, 1.0, frozenset())
    assert copy.copy(call).q is call.q
    assert torch.equal(copy.deepcopy(call).q, call.q)
