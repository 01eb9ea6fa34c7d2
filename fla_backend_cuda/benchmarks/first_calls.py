"""Time the first call, forward and backward, of fresh processes with empty compile caches.

    python first_calls.py [TITLE ...] [--shape main] [--beside 2] [--plugin cuda] [--device cuda:0]

A title is that of a timed call, such as ``chunk_kda:gate``, or a glob over them. ``--beside``
processes run at a time; each compiles its kernels side by side on cores that are idle, so too many
of them wait for one another. Answers are not looked at here: ``check_and_time.py`` does that.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from fnmatch import fnmatchcase

import torch
from calls import SHAPES, chosen, workloads

from fla_core.cli.calls.bench import fresh
from fla_core.cli.calls.bench.providers import provider
from fla_core.cli.calls.bench.workload import Workload

TITLES = (
    "chunk_linear_attn",
    "chunk_retention",
    "chunk_gla",
    "chunk_gated_delta_rule",
    "chunk_kda:gate",
)


def wanted(plugin: str, device: str, titles: Sequence[str], shape: str) -> list[Workload]:
    """The calls of those titles that the plugin serves, in the order of its contracts."""
    contracts = dict.fromkeys(t.declaration.contract for t in chosen(plugin, device, ["*"]))
    return [
        workload
        for contract in contracts
        for workload in workloads(contract, [shape], torch.bfloat16)
        if any(fnmatchcase(workload.recipe.title, title) for title in titles)
    ]


def first_calls(
    listed: Sequence[Workload], plugin: str, device: torch.device, beside: int
) -> Iterator[tuple[Workload, float | None, str]]:
    """Each call with its seconds, or with what went wrong, as they end."""
    ours = provider("ours", plugin)
    with ThreadPoolExecutor(beside) as pool:
        asked = {pool.submit(fresh.first_call, one, ours, "both", device): one for one in listed}
        for done in as_completed(asked):
            error = done.exception()
            yield asked[done], None if error else done.result(), str(error or "")


def main() -> int:
    """Time and print; 1 when a process failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("titles", nargs="*", default=TITLES)
    parser.add_argument("--shape", default="main", choices=list(SHAPES))
    parser.add_argument("--beside", type=int, default=2)
    parser.add_argument("--plugin", default="cuda")
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    listed = wanted(options.plugin, options.device, options.titles, options.shape)
    if not listed:
        parser.error(f"{' '.join(options.titles)}: {options.plugin} serves no such call")
    device, failed = torch.device(options.device), False
    for workload, seconds, trouble in first_calls(listed, options.plugin, device, options.beside):
        told = f"{seconds:6.1f} s" if seconds is not None else f"FAIL {trouble}"
        print(f"{workload.recipe.title:30} {workload.text:28} {told}", flush=True)
        failed |= seconds is None
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
