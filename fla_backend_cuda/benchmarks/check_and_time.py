"""Check the plugin against the float64 recurrence on this GPU, then time it.

    python check_and_time.py [--budget ci|full|none] [--workers 14] [--json FILE]

Checks are the suite's grid of forward and backward cases of every implementation, shared out to
processes so that kernels compile side by side. Nothing is timed unless all of them pass. Times are
medians of ``triton.testing.do_bench`` in milliseconds, through the public operators, host included.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import triton
from torch import Tensor

from fla_conformance.grid import grid
from fla_conformance.run import run_case, targets
from fla_core.contracts import CONTRACTS
from fla_core.ops.linear_attn import chunk_linear_attn
from fla_core.ops.retention import chunk_retention
from fla_core.ops.simple_gla import chunk_simple_gla, fused_recurrent_simple_gla

SHAPES = ((2, 8192, 16, 128), (1, 32768, 16, 128), (8, 2048, 32, 64), (1, 512, 16, 128))
LEVELS = ("L1", "L2")


@dataclass(frozen=True, slots=True)
class Timing:
    """What one operator takes at one shape."""

    operator: str
    shape: tuple[int, ...]
    forward_ms: float
    both_ms: float
    peak_mib: float
    host_forward_us: float
    host_both_us: float


def check(budget: str, worker: int, workers: int) -> int:
    """Run every ``workers``-th case of the grid; the number that did not pass."""
    torch.set_num_threads(1)
    todo = [
        (target, case, level)
        for target in targets("cuda", "cuda:0")
        for level in LEVELS
        for case in grid(CONTRACTS[target.declaration.contract], target.declaration, level, budget)
    ]
    results = [run_case(case, target, level) for target, case, level in todo[worker::workers]]
    wrong = [result for result in results if result.outcome.value != "pass"]
    for result in wrong:
        print(f"{result.outcome.value:16} {result.id} {result.detail}", flush=True)
    margins = [max(r.margin.block, r.margin.token) for r in results if r.margin is not None]
    worst = max(margins, default=0.0)
    print(f"{len(results) - len(wrong)}/{len(results)} pass, worst margin {worst:.2f}", flush=True)
    return len(wrong)


def check_in_parallel(budget: str, workers: int) -> bool:
    """Share the grid out to processes; True when every case passed."""
    command = [sys.executable, __file__, "--budget", budget, "--workers", str(workers)]
    running = [subprocess.Popen([*command, "--worker", str(worker)]) for worker in range(workers)]
    codes = [process.wait() for process in running]
    return not any(codes)


def bench(function: Callable[[], object]) -> float:
    """Median milliseconds."""
    return float(triton.testing.do_bench(function, warmup=20, rep=80, return_mode="median"))


def host_time(function: Callable[[], object], calls: int = 30) -> float:
    """Microseconds the host needs to issue a call, while the device may lag behind."""
    function()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        function()
    taken = time.perf_counter() - start
    torch.cuda.synchronize()
    return taken / calls * 1e6


def operators(shape: tuple[int, ...]) -> Iterator[tuple[str, Callable[[], Tensor], list[Tensor]]]:
    """Name, call and differentiated inputs of what is timed at a shape."""

    def drawn(*sizes: int) -> Tensor:
        return torch.randn(*sizes, device="cuda", dtype=torch.bfloat16).requires_grad_()

    q, k, v = (drawn(*shape) for _ in range(3))
    g = torch.nn.functional.logsigmoid(torch.randn(shape[:3], device="cuda")).requires_grad_()
    yield "chunk_retention", lambda: chunk_retention(q, k, v)[0], [q, k, v]
    yield "chunk_simple_gla, g", lambda: chunk_simple_gla(q, k, v, g)[0], [q, k, v, g]
    plain = lambda: chunk_linear_attn(q, k, v, normalize=False)[0]  # noqa: E731
    yield "chunk_linear_attn", plain, [q, k, v]


def timed(
    name: str, call: Callable[[], Tensor], inputs: list[Tensor], shape: tuple[int, ...]
) -> Timing:
    """Time one operator, forward alone and with backward."""
    do = torch.randn_like(inputs[2])

    def both() -> None:
        torch.autograd.grad(call(), inputs, do)

    with torch.no_grad():
        call()
        forward_ms, host_forward = bench(call), host_time(call)
    both()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    both()
    peak = (torch.cuda.max_memory_allocated() - held) / 2**20
    return Timing(name, shape, forward_ms, bench(both), peak, host_forward, host_time(both))


def decode(batch: int) -> dict[str, float]:
    """One token of H = 32, K = V = 128 with a float32 state: device and host microseconds."""
    q, k, v = (torch.randn(batch, 1, 32, 128, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    g = torch.full((batch, 1, 32), -0.1, device="cuda")
    state = torch.randn(batch, 32, 128, 128, device="cuda")

    def step() -> object:
        return fused_recurrent_simple_gla(q, k, v, g, initial_state=state, output_final_state=True)

    with torch.no_grad():
        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return {
            "batch": batch,
            "device_us": bench(graph.replay) * 1e3,
            "host_us": host_time(step, 200),
        }


def first_call() -> float:
    """Seconds of the first forward and backward in a fresh process with an empty cache."""
    program = (
        "import time, torch; from fla_core.ops.retention import chunk_retention\n"
        "x = [torch.randn(2, 8192, 16, 128, device='cuda', dtype=torch.bfloat16)"
        ".requires_grad_() for _ in range(3)]\n"
        "torch.cuda.synchronize(); t = time.perf_counter()\n"
        "chunk_retention(*x)[0].sum().backward(); torch.cuda.synchronize()\n"
        "print(time.perf_counter() - t)"
    )
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TRITON_CACHE_DIR": cache}
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True
        )
    return float(run.stdout) if run.returncode == 0 else float("nan")


def main() -> int:
    """Check, then time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="ci")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--worker", type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.worker is not None:
        return check(options.budget, options.worker, options.workers)
    if options.budget != "none" and not check_in_parallel(options.budget, options.workers):
        print("not timed: a case did not pass")
        return 1
    print("operator             shape                     fwd ms  both ms  MiB   host us")
    timings = []
    for shape in SHAPES:
        for name, call, inputs in operators(shape):
            t = timed(name, call, inputs, shape)
            timings.append(t)
            print(
                f"{name:20} {shape!s:25} {t.forward_ms:6.3f} {t.both_ms:8.3f} {t.peak_mib:5.0f}"
                f" {t.host_forward_us:5.0f} {t.host_both_us:5.0f}",
                flush=True,
            )
    steps = [decode(batch) for batch in (1, 64)]
    first = first_call()
    print(f"decode {steps}\nfirst forward and backward, empty cache: {first:.1f} s")
    if options.json is not None:
        found = {"timings": list(map(asdict, timings)), "decode": steps, "first_call_s": first}
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
