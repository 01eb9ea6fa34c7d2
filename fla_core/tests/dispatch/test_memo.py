"""What public operators keep of a signature goes with the plans."""

from __future__ import annotations

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
