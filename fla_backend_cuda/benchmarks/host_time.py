"""Where the host's time of short calls goes on this GPU: allocations, launches, operators.

    python host_time.py [--calls 200] [--json FILE] [--only PATTERN]

Microseconds a call, the best of several rounds in which all steps take turns; the device is waited
for after each round. The launches are those of the decode kernel, in the forms that Triton offers
and in those of :mod:`fla_triton.launch`. What the core adds to an operator, on this machine, is
``python fla_core/benchmarks/dispatch_overhead.py --device cuda``.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from fla_core.ops.delta_rule import chunk_delta_rule, fused_recurrent_delta_rule
from fla_core.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from fla_core.ops.gla import chunk_gla, fused_recurrent_gla
from fla_core.ops.kda import chunk_kda, fused_recurrent_kda
from fla_core.ops.linear_attn import chunk_linear_attn
from fla_core.ops.retention import chunk_retention
from fla_core.ops.simple_gla import chunk_simple_gla, fused_recurrent_simple_gla
from fla_triton import launch

Steps = dict[str, Callable[[], object]]
ROUNDS = 7
HEADS, DIM = 32, 128


def microseconds(steps: Steps, calls: int) -> dict[str, float]:
    """What the host needs to issue each step, the best of the rounds."""
    found = dict.fromkeys(steps, float("inf"))
    for step in steps.values():
        for _ in range(3):
            step()
    for _ in range(ROUNDS):
        for name, step in steps.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                step()
            found[name] = min(found[name], (time.perf_counter() - start) / calls * 1e6)
    torch.cuda.synchronize()
    return found


def drawn(*sizes: int, gradients: bool = False) -> Tensor:
    """Activations."""
    return torch.randn(*sizes, device="cuda", dtype=torch.bfloat16, requires_grad=gradients)


def gates(*sizes: int, gradients: bool = False) -> Tensor:
    """Log decays."""
    g = torch.nn.functional.logsigmoid(torch.randn(sizes, device="cuda"))
    return g.requires_grad_(gradients)


def launches() -> Steps:
    """The launch of a decode step of one sequence, in every form there is."""
    seen: list[tuple[Any, ...]] = []
    original = launch.Launches.run

    def noted(self: launch.Launches, *given: Any) -> None:
        seen.append(given)
        original(self, *given)

    with patch.object(launch.Launches, "run", noted):
        decoding().popitem()[1]()
    name, arguments, settle = seen[0]
    kernel, planned, own = settle()
    constants = {**own, **planned.constants}
    options = {"num_warps": planned.warps, "num_stages": planned.stages}
    grid, known = (planned.grid, 1, 1), launch.Launches()
    compiled = kernel[grid](*arguments, **constants, **options)
    ordered = [constants[name] for name in kernel.arg_names[len(arguments) :]]
    shape = (kernel, planned.grid, arguments, constants, planned.warps, planned.stages)
    return {
        "torch.empty_like": lambda: torch.empty_like(arguments[0]),
        "kernel[grid]": lambda: kernel[grid](*arguments, **constants, **options),
        "compiled[grid]": lambda: compiled[grid](*arguments, *ordered),
        "launch(...)": lambda: launch.launch(*shape),
        "Launches.run": lambda: known.run(name, arguments, settle),
    }


def decoding() -> Steps:
    """One token through the public operators, final states returned."""
    q, k, v = (drawn(1, 1, HEADS, DIM) for _ in range(3))
    g, gk, beta = (
        gates(1, 1, HEADS),
        gates(1, 1, HEADS, DIM),
        torch.rand(1, 1, HEADS, device="cuda"),
    )
    given = {"initial_state": torch.randn(1, HEADS, DIM, DIM, device="cuda")}
    given["output_final_state"] = True
    calls: dict[str, tuple[Callable[..., object], tuple[Tensor, ...]]] = {
        "simple_gla with g": (fused_recurrent_simple_gla, (q, k, v, g)),
        "gla": (fused_recurrent_gla, (q, k, v, gk)),
        "delta_rule": (fused_recurrent_delta_rule, (q, k, v, beta)),
        "gated_delta_rule": (partial(fused_recurrent_gated_delta_rule, beta=beta), (q, k, v, g)),
        "kda": (fused_recurrent_kda, (q, k, v, gk, beta)),
    }
    return {
        f"decode, {name}": partial(call, *inputs, **given) for name, (call, inputs) in calls.items()
    }


def short_calls() -> Steps:
    """Calls whose kernels take less time than issuing them."""
    shape = (1, 512, 16, 128)
    steps: Steps = {}

    def add(name: str, call: Callable[..., Any], *inputs: Tensor) -> None:
        leaves = [x.detach().requires_grad_() for x in inputs]
        weight = torch.ones_like(inputs[2])

        def both() -> None:
            torch.autograd.grad(call(*leaves)[0], leaves, weight)

        steps[f"{name}, forward"] = torch.no_grad()(partial(call, *inputs))
        steps[f"{name}, forward and backward"] = both

    q, k, v = (drawn(*shape) for _ in range(3))
    g, gk, beta = gates(*shape[:3]), gates(*shape), torch.rand(shape[:3], device="cuda")
    normed = {"use_qk_l2norm_in_kernel": True}
    gated = {**normed, "use_gate_in_kernel": True, "safe_gate": True, "lower_bound": -5.0}
    rate, bias = torch.rand(shape[2], device="cuda"), torch.rand(shape[2] * DIM, device="cuda")

    def chunk_kda_gate(*given: Tensor) -> Any:
        *others, a_log, dt_bias = given
        return chunk_kda(*others, A_log=a_log, dt_bias=dt_bias, **gated)

    add("bare autograd node", Bare.apply, q, k, v)
    add("chunk_linear_attn, not normalised", partial(chunk_linear_attn, normalize=False), q, k, v)
    add("chunk_retention", chunk_retention, q, k, v)
    add("chunk_simple_gla with g", chunk_simple_gla, q, k, v, g)
    add("chunk_gla", chunk_gla, q, k, v, gk)
    unit = torch.nn.functional.normalize(k, dim=-1)
    add("chunk_delta_rule", chunk_delta_rule, q, unit, v, beta)
    add("chunk_gated_delta_rule", chunk_gated_delta_rule, q, unit, v, g, beta)
    add("with l2norm", partial(chunk_gated_delta_rule, **normed), q, k, v, g, beta)
    add("chunk_kda", chunk_kda, q, unit, v, gk, beta)
    add("with l2norm and the gate", chunk_kda_gate, q, k, v, gk, beta, rate, bias)
    return steps


class Bare(torch.autograd.Function):
    """Allocates and does no more: what autograd takes of a step."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> tuple[Tensor]:
        """An output."""
        ctx.save_for_backward(*given)
        return (torch.empty_like(given[2]),)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Gradients."""
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors)


def replayed(step: Callable[[], object]) -> float:
    """Microseconds of a replay of a captured step, device included."""
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        step()
    return microseconds({"replay": graph.replay}, 50)["replay"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="*")
    options = parser.parse_args()

    def taken_by(steps: Steps, calls: int) -> dict[str, float]:
        named = {name: step for name, step in steps.items() if fnmatchcase(name, options.only)}
        return microseconds(named, calls)

    with torch.no_grad():
        found = taken_by({**launches(), **decoding()}, options.calls)
    found |= taken_by(short_calls(), options.calls // 4)
    found["decode, replayed from a graph"] = replayed(decoding().popitem()[1])
    for name, taken in found.items():
        print(f"{name:48} {taken:8.1f} us")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
