"""Runs scenarios, each in a forked child in which only the named plugins may load.

Reads one request a line from standard input and answers with one line of JSON. Forking a process
that has imported torch makes a scenario take 0.1 s instead of the seconds of a fresh interpreter,
and leaves no trace of a plugin for the next one.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch

from fla_core.dispatch.runtime import RUNTIME, reload_env
from fla_core.ops.simple_gla import chunk_simple_gla

NAMES = ("q", "k", "v", "g")
TOLERANCE = 1e-4
"""Relative: float32 against float64 over five tokens stays below 1e-6, planted faults do not."""


def tensors(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"q": (1, 5, 2, 4), "k": (1, 5, 2, 4), "v": (1, 5, 2, 4), "g": (1, 5, 2)}
    made = {n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}
    made["g"] = -made["g"].abs()
    return {name: tensor.to(dtype) for name, tensor in made.items()}


def weight() -> torch.Tensor:
    return torch.linspace(-1, 1, 40, dtype=torch.float64).view(1, 5, 2, 4)


def compute(
    inputs: dict[str, torch.Tensor],
    gradients: bool,
    backend: str | None,
    operator: Callable[..., Any] = chunk_simple_gla,
) -> dict[str, torch.Tensor]:
    """Outputs and, if wanted, gradients, also of a second branch that is added to the output.

    The second branch receives the very gradient that backward of the operator received, after it.
    """
    leaves = {name: tensor.requires_grad_(gradients) for name, tensor in inputs.items()}
    branch = torch.zeros_like(inputs["v"]).requires_grad_(gradients)
    other = branch * 1
    o, state = operator(**leaves, output_final_state=True, backend=backend)
    found = {"o": o.detach(), "state": state.detach()}
    if gradients:
        (((o + other) * weight().to(o.dtype)).sum() + 0.1 * state.sum()).backward()
        found |= {f"d{name}": leaf.grad for name, leaf in leaves.items()}
        found["branch"] = branch.grad
    return found


def wrong(found: dict[str, torch.Tensor], gold: dict[str, torch.Tensor], sign: int) -> list[str]:
    """Names of the tensors that differ from the float64 result."""
    return [name for name, tensor in found.items() if not _close(tensor, sign * gold[name])]


def _close(tensor: torch.Tensor, gold: torch.Tensor) -> bool:
    if tensor.is_meta or tensor.shape != gold.shape:
        return False
    error = (tensor.double() - gold).norm()
    return bool(error <= TOLERANCE * gold.norm())


def entrance(compiled: bool) -> Callable[..., Any]:
    """The operator, eager or as the one graph that ``torch.compile`` makes of it."""
    if not compiled:
        return chunk_simple_gla
    return torch.compile(chunk_simple_gla, backend="aot_eager", fullgraph=True)


def attempt(request: dict[str, Any], gold: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Make the calls of one request and say what came of them."""
    inputs = tensors(torch.float32)
    before = copy.deepcopy(inputs)
    report: dict[str, Any] = {"error": None, "wrong": [], "warnings": []}
    results = []
    operator = entrance(request.get("compiled", False))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for number in range(request.get("calls", 1)):
                # In inference every other call gets -k, so that calls differ: then o and the
                # state only change their sign.
                sign = 1 if request["gradients"] else (-1) ** number
                called = inputs if sign > 0 else {**inputs, "k": -inputs["k"]}
                result = compute(called, request["gradients"], request["backend"], operator)
                results.append((sign, result))
                for leaf in inputs.values():
                    leaf.grad = None
        except BaseException as error:
            report["error"] = describe(error)
    report["warnings"] = [str(warning.message) for warning in caught]
    # All results are read at the end, so that a later call cannot spoil an earlier one unseen.
    report["wrong"] = sorted({n for sign, found in results for n in wrong(found, gold, sign)})
    report["changed"] = [name for name in NAMES if not torch.equal(inputs[name], before[name])]
    return report


def describe(error: BaseException) -> dict[str, Any]:
    cause = error.__cause__
    return {
        "type": type(error).__name__,
        "text": str(error),
        "notes": "\n".join(getattr(error, "__notes__", ())),
        "cause": None if cause is None else f"{type(cause).__name__}: {cause}",
        "traceback": "".join(traceback.format_exception(error)),
    }


def scenario(request: dict[str, Any], gold: dict[str, torch.Tensor]) -> dict[str, Any]:
    os.environ["FLA_PLUGINS"] = request["plugins"]
    os.environ["FLA_BACKEND"] = request.get("policy", "")
    RUNTIME.probe_timeout = 0.2
    reload_env()
    RUNTIME.reload_plugins()
    report = attempt(request, gold)
    others = {**request, "gradients": True, "calls": 1, "compiled": False}
    report["others"] = {
        name: attempt({**others, "backend": name}, gold) for name in request["others"]
    }
    report["states"] = [(record.name, record.summary()) for record in RUNTIME.registry]
    report["notes"] = {record.name: record.notes for record in RUNTIME.registry if record.notes}
    return report


def in_child(request: dict[str, Any], gold: dict[str, torch.Tensor]) -> str:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = json.dumps(scenario(request, gold))
        except BaseException:
            answer = json.dumps({"crash": traceback.format_exc()})
        with os.fdopen(write, "w") as pipe:
            pipe.write(answer)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    return answer or json.dumps({"crash": f"the process ended with status {status}"})


def main() -> None:
    gold = compute(tensors(torch.float64), True, "reference")
    # Plugins may print; answers must arrive undisturbed.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(in_child(json.loads(line), gold) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
