"""Activation checkpointing runs forward twice; both must be the same implementation's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError, checkpoint

from fakes import domain, implementation, plugin
from fla_core import ops, use
from fla_core.dispatch.runtime import sandbox
from fla_core.errors import UnsupportedError
from fla_core.plugins.record import PluginRecord


def scaled(name: str, factor: float) -> PluginRecord:
    """Computes ``o = v`` and keeps ``factor * v`` for backward, which needs its own factor."""

    def forward(call: Any, save: bool) -> Any:
        return (call.v.clone(),), ((call.v * factor,) if save else ())

    def backward(call: Any, residuals: Any, grads: Any, needs: Any) -> Any:
        return {"v": residuals[0] / call.v / factor * grads[0]}

    def residuals(call: Any) -> Any:
        return ((tuple(call.v.shape), call.v.dtype),)

    functions = {"forward": forward, "backward": backward, "residuals": residuals}
    made = implementation("linear_attn", domain=domain(), forms=("chunk",), **functions)
    return plugin(name, made, targets=("cpu",))


def run(v: Tensor, backend: str | None = None, **options: Any) -> Tensor:
    def call(v: Tensor) -> Tensor:
        x = torch.ones(1, 3, 1, 4)
        return ops.chunk_linear_attn(x, x, v, normalize=False, backend=backend)[0]

    o: Tensor = checkpoint(call, v, use_reentrant=False, **options)
    return o


def test_recomputing_under_another_policy_is_refused() -> None:
    with sandbox(scaled("one", 1.0), scaled("two", 100.0)):
        for options, error in (({}, CheckpointError), ({"determinism_check": "none"}, None)):
            v = torch.ones(1, 3, 1, 4, requires_grad=True)
            with use("two"):
                o = run(v, **options)
            with pytest.raises(error or UnsupportedError):
                o.sum().backward()
            assert v.grad is None


def compiled(v: Tensor) -> Tensor:
    x = torch.ones(1, 3, 1, 4)
    return ops.chunk_linear_attn(x, x, v, normalize=False)[0]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_recomputing_a_compiled_function_under_another_policy_is_refused(backend: str) -> None:
    torch._dynamo.reset()
    function = torch.compile(compiled, fullgraph=True, backend=backend)
    with sandbox(scaled("one", 1.0), scaled("two", 100.0)):
        v = torch.ones(1, 3, 1, 4, requires_grad=True)
        with use("two"):
            o = checkpoint(function, v, use_reentrant=False)
        with pytest.raises(CheckpointError):
            o.sum().backward()
        with use("two"):
            o = checkpoint(function, v, use_reentrant=False, determinism_check="none")
        # The code that inductor makes compares shapes itself.
        with pytest.raises((UnsupportedError, AssertionError)):
            o.sum().backward()
        assert v.grad is None
        with use("two"):
            checkpoint(function, v, use_reentrant=False).sum().backward()
    assert v.grad is not None
    assert torch.equal(v.grad, torch.ones_like(v))


def test_recomputing_under_the_same_policy_is_fine() -> None:
    with sandbox(scaled("one", 1.0), scaled("two", 100.0)):
        v = torch.ones(1, 3, 1, 4, requires_grad=True)
        run(v, backend="two").sum().backward()
        with use("two"):
            run(v).sum().backward()
    assert v.grad is not None
    assert torch.equal(v.grad, torch.full_like(v, 2.0))
