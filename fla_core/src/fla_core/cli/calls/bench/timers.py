"""Clocks: medians on a device between two events, on the CPU by torch's own benchmark timer."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.benchmark import Timer

Call = Callable[[], object]

CACHE_BYTES = 256 * 2**20
"""Written between two runs, so that none finds its inputs in the last-level cache."""

FEWEST, MOST = 7, 200
"""Runs on a device of which the median is taken."""

FEWEST_ON_CPU = 3
"""Runs on the CPU, where one may take seconds; one alone may be the one that was disturbed."""


def milliseconds(call: Call, device: torch.device, budget: float = 0.1) -> float:
    """Median time of a call, host time included where the device waits for it.

    Args:
        call: what is timed.
        device: where it runs.
        budget: seconds that all runs may take together.
    """
    if device.type == "cpu":
        timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
        taken = timer.blocked_autorange(min_run_time=budget)
        seconds = list(taken.times)
        while len(seconds) < FEWEST_ON_CPU:  # not timer.timeit, which warms up by two more
            start = time.perf_counter()
            for _ in range(taken.number_per_run):
                call()
            seconds.append((time.perf_counter() - start) / taken.number_per_run)
        return statistics.median(seconds) * 1e3
    module = torch.get_device_module(device)
    flushed = torch.empty(CACHE_BYTES, dtype=torch.int8, device=device)
    once = statistics.median(_events(call, module, flushed, 3))
    runs = min(MOST, max(FEWEST, int(budget * 1e3 / max(once, 1e-3))))
    return statistics.median(_events(call, module, flushed, runs))


def _events(call: Call, module: Any, flushed: torch.Tensor, runs: int) -> list[float]:
    pairs = [[module.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    call()
    module.synchronize()
    for start, end in pairs:
        flushed.zero_()
        start.record()
        call()
        end.record()
    module.synchronize()
    return [start.elapsed_time(end) for start, end in pairs]


def host_microseconds(call: Call, device: torch.device, runs: int = 30) -> float | None:
    """What a call keeps the host busy for; None where host and device are one."""
    if device.type == "cpu":
        return None
    module = torch.get_device_module(device)
    call()
    taken = []
    for _ in range(runs):
        module.synchronize()
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    module.synchronize()
    return statistics.median(taken) * 1e6


def peak_mib(call: Call, device: torch.device) -> float | None:
    """What a call allocates above what is there before it; None where nobody counts."""
    if device.type == "cpu":
        return None
    module = torch.get_device_module(device)
    if not hasattr(module, "max_memory_allocated"):
        return None
    call()
    gc.collect()
    module.synchronize()
    held = module.memory_allocated(device)
    module.reset_peak_memory_stats(device)
    call()
    module.synchronize()
    return float(module.max_memory_allocated(device) - held) / 2**20


def graph_milliseconds(call: Call, device: torch.device) -> float | None:
    """Median time of a captured call, free of the host; None where it cannot be captured.

    What a provider does under capture is its own: whatever it raises, there is no graph.
    """
    if device.type != "cuda":
        return None
    graph = torch.cuda.CUDAGraph()
    try:
        call()
        torch.cuda.synchronize(device)
        with torch.cuda.graph(graph):
            call()
    except Exception:
        torch.cuda.synchronize(device)
        return None
    return milliseconds(graph.replay, device)
