"""First calls: a process of its own, nothing compiled, one call on tensors that lie ready.

``python -m fla_core.cli.calls.bench.fresh JSON`` prints the seconds. What torch loads for the first
gradient of any process, sympy with it, is loaded before: it is in no provider's call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from fla_core.cli.calls.bench import recipes
from fla_core.cli.calls.bench.workload import Workload
from fla_core.errors import FlaError

if TYPE_CHECKING:
    from fla_core.cli.calls.bench.anchor import Anchor
    from fla_core.cli.calls.bench.providers import Provider

CACHES = ("TRITON_CACHE_DIR", "TILELANG_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
"""Where toolchains keep what they compiled."""

MODULE = "fla_core.cli.calls.bench.fresh"

LIMIT = 600.0
"""Seconds after which a first call is given up."""


class FirstCallError(FlaError):
    """What became of a fresh process that should have made a call."""


def first_call(
    workload: Workload, provider: Provider | Anchor, direction: str, device: torch.device
) -> float:
    """Seconds of the first call in a fresh process.

    Raises:
        FirstCallError: that process failed, or took too long.
    """
    recipe = workload.recipe
    asked = {
        "provider": provider.name,
        "backend": provider.backend,
        "operator": recipe.operator,
        "variant": recipe.variant,
        "sizes": dict(workload.sizes),
        "lengths": workload.lengths,
        "dtype": str(workload.dtype).removeprefix("torch."),
        "direction": direction,
        "device": str(device),
    }
    command = [sys.executable, "-m", MODULE, json.dumps(asked)]
    with tempfile.TemporaryDirectory() as empty:
        path = os.pathsep.join(sys.path)
        environment = {**os.environ, **dict.fromkeys(CACHES, empty), "PYTHONPATH": path}
        try:
            run = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=LIMIT
            )
        except subprocess.TimeoutExpired:
            raise FirstCallError(f"the fresh process took more than {LIMIT:g} s") from None
    if run.returncode:
        last = run.stderr.strip().rpartition("\n")[2]
        raise FirstCallError(f"the fresh process ended with status {run.returncode}: {last}")
    return float(run.stdout.split()[-1])


def measure(asked: Mapping[str, Any]) -> float:
    """Draw the tensors, then time one call."""
    from fla_core.cli.calls.bench import anchor
    from fla_core.cli.calls.bench.runner import first_tensor

    operator, direction = asked["operator"], asked["direction"]
    who = anchor.find(asked["provider"], asked["backend"])
    if isinstance(who, anchor.Anchor):
        recipe = anchor.RECIPE
    elif direction == "decode":
        recipe = recipes.stepped(operator)
    else:
        (recipe,) = recipes.find(operator, asked["variant"])
    lengths = None if asked["lengths"] is None else tuple(asked["lengths"])
    dtype, device = getattr(torch, asked["dtype"]), torch.device(asked["device"])
    problem = Workload(recipe, asked["sizes"], lengths, dtype).make(device, direction == "both")
    call = who.bound(recipe, problem)
    if problem.trained:
        _any_gradient(device)
    _wait(device)
    start = time.perf_counter()
    with torch.set_grad_enabled(bool(problem.trained)):
        o = first_tensor(call())
    if problem.trained:
        leaves = [problem.present[name] for name in sorted(problem.trained)]
        torch.autograd.grad(o, leaves, torch.ones_like(o), allow_unused=True)
    _wait(device)
    return time.perf_counter() - start


def _any_gradient(device: torch.device) -> None:
    """A gradient of torch's own: with one given, as here, it imports its symbolic shapes."""
    one = torch.ones(1, device=device, requires_grad=True)
    torch.autograd.grad(one * 1, one, torch.ones_like(one))


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


if __name__ == "__main__":
    print(measure(json.loads(sys.argv[1])))
