"""What a call costs the host, counted in functions called: a measure that no load disturbs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes import domain, implementation, plugin
from fla_core import ops
from fla_core.dispatch.runtime import sandbox
from fla_core.testing import calls_made_by

OUTPUT = torch.zeros(1, 3, 1, 4)
STATE = torch.zeros(1, 1, 4, 4)

#: Functions that the code of the core calls: 26, 106 and 46 under Python 3.11, with a sixth of
#: headroom. Forward and backward took 194 when contexts and copies were made for every call.
FORWARD, TRAINING, PACKED = 30, 124, 54


def forward(call: Any, save: bool) -> Any:
    return (OUTPUT, STATE) if "final_state" in call.features else (OUTPUT,), ()


def backward(call: Any, residuals: Any, grads: Any, needs: Any) -> Any:
    return {name: torch.empty_like(call.tensors[name]) for name in needs}


@pytest.fixture(autouse=True)
def idle() -> Iterator[None]:
    """An implementation that does nothing."""
    changes = {"forward": forward, "backward": backward, "domain": domain("g"), "strided": True}
    with sandbox(plugin("idle", implementation("simple_gla", **changes), targets=("cpu",))):
        yield


def inputs(requires_grad: bool = False) -> list[Tensor]:
    tensors = [torch.ones(1, 3, 1, 4) for _ in "qkv"] + [torch.zeros(1, 3, 1)]
    return [x.requires_grad_(requires_grad) for x in tensors]


def effort(step: Callable[[], object]) -> int:
    made = calls_made_by("fla_core", step)
    assert made == calls_made_by("fla_core", step)
    return made


def test_of_a_call_without_gradients() -> None:
    q, k, v, g = inputs()
    assert 10 < effort(lambda: ops.chunk_simple_gla(q, k, v, g)) <= FORWARD
    step = lambda: ops.fused_recurrent_simple_gla(q, k, v, g, output_final_state=True)  # noqa: E731
    assert 10 < effort(step) <= FORWARD


def test_of_forward_and_backward() -> None:
    given = inputs(requires_grad=True)

    def step() -> None:
        o, _ = ops.chunk_simple_gla(*given)
        torch.autograd.grad(o, given, OUTPUT)

    assert 40 < effort(step) <= TRAINING


def test_of_a_packed_call() -> None:
    q, k, v, g = inputs()
    cu = torch.tensor([0, 1, 3])
    assert 10 < effort(lambda: ops.chunk_simple_gla(q, k, v, g, cu_seqlens=cu)) <= PACKED


def test_the_measure_sees_work() -> None:
    q, k, v, g = inputs()
    least = effort(lambda: ops.chunk_simple_gla(q, k, v, g))
    assert effort(lambda: ops.chunk_simple_gla(q, k, v, g, chunk_size=32)) > least


class Litter:
    """What only the collector finds, and what then calls a function."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        pass


def littering(call: Any, save: bool) -> Any:
    made = forward(call, save)
    for _ in range(10):
        Litter()
    return made


def test_the_measure_leaves_out_what_the_collector_does() -> None:
    q, k, v, g = inputs()
    least = effort(lambda: ops.chunk_simple_gla(q, k, v, g))
    often = gc.get_threshold()
    changes = {"forward": littering, "backward": backward, "domain": domain("g"), "strided": True}
    with sandbox(plugin("litters", implementation("simple_gla", **changes), targets=("cpu",))):
        try:
            for objects in range(1, 60):
                gc.set_threshold(objects)
                assert effort(lambda: ops.chunk_simple_gla(q, k, v, g)) == least
            assert gc.isenabled()
        finally:
            gc.set_threshold(*often)
