"""Sizes that a domain constrains, when torch makes symbols of all sizes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import fakes
from fla_core.dispatch.runtime import sandbox
from fla_core.domain import FLOATS, AxisRange, Domain
from fla_core.ops.simple_gla import chunk_simple_gla


@pytest.fixture(autouse=True)
def narrow() -> Iterator[None]:
    """A plugin for keys of 8 and 16, as selective as most kernels."""
    domain = Domain(
        FLOATS[:3],
        {"K": AxisRange(choices=(8, 16))},
        features={"g": "required", "final_state": "optional"},
    )
    implementation = fakes.implementation(
        "simple_gla",
        domain=domain,
        forward="fla_core.reference.implementations:decay_chunk_forward",
        backward="fla_core.reference.implementations:decay_chunk_backward",
    )
    with sandbox(fakes.plugin("acme", implementation, targets=("cpu",))):
        yield


def attention(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return chunk_simple_gla(q, k, v, g, backend="acme")[0]


def inputs(length: int, keys: int) -> tuple[Tensor, ...]:
    torch.manual_seed(length)
    shapes = (keys, keys, 5)
    q, k, v = (torch.randn(2, length, 3, size, requires_grad=True) for size in shapes)
    return q, k, v, -torch.rand(2, length, 3)


def test_a_new_length_shares_the_graph_and_a_new_key_size_does_not() -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend=counter)
    graphs = []
    for length, keys in ((20, 8), (33, 8), (20, 16)):
        call = inputs(length, keys)
        torch.testing.assert_close(compiled(*call), attention(*call))
        graphs.append(counter.frame_count)
    assert graphs == [1, 1, 2]


def test_without_gradients_too() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend="aot_eager")
    call = inputs(20, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*call), attention(*call))
