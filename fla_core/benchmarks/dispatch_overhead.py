"""What a hit in the plans costs: building the key and looking it up.

Usage: ``python dispatch_overhead.py [--repeat N]``. Prints nanoseconds a call, the best of N runs,
beside the limit of 2 microseconds.
"""

from __future__ import annotations

import argparse
import timeit
from types import ModuleType

import torch
from rich.console import Console
from rich.table import Table

from fla_core.contracts import KDA
from fla_core.dispatch.context import policy_text
from fla_core.dispatch.plan import find_plan
from fla_core.dispatch.runtime import sandbox
from fla_core.domain import AxisRange, Domain
from fla_core.plugins import Backend, Implementation, hookimpl
from fla_core.plugins.discover import in_memory

LIMIT = 2000.0
LOOPS = 5_000


def plugin() -> ModuleType:
    """A backend that constrains K, so that the key has a size in it."""
    module = ModuleType("narrow")
    domain = Domain(axes={"K": AxisRange(16, 256)}, features={"final_state": "optional"})

    def forward(call: object, save: bool) -> object:
        raise NotImplementedError

    @hookimpl
    def fla_backend() -> Backend:
        return Backend("narrow", ("cpu",), "torch")

    @hookimpl
    def fla_implementations() -> list[Implementation]:
        return [Implementation("kda", 1, "chunk", forward, forward, domain)]

    module.fla_backend = fla_backend  # type: ignore[attr-defined]
    module.fla_implementations = fla_implementations  # type: ignore[attr-defined]
    return module


def measure(repeat: int) -> dict[str, float]:
    """Nanoseconds of each step, the best of ``repeat`` runs."""
    device, bf16, fp32 = torch.device("cpu"), torch.bfloat16, torch.float32
    dtypes = (bf16, bf16, bf16, fp32, fp32, None, None, None)
    sizes = (2, 4096, 8, 8, 128, 128, 2)
    features, gradients = frozenset({"final_state", "l2norm"}), frozenset({"q", "k", "v"})

    def hit() -> None:
        find_plan(
            KDA,
            "chunk_kda",
            "chunk",
            device,
            bf16,
            dtypes,
            sizes,
            features,
            gradients,
            False,
            policy_text(None),
        )

    def nothing() -> None:
        pass

    steps = {"empty call": nothing, "policy text": lambda: policy_text(None), "plan, hit": hit}
    with sandbox(in_memory("narrow", plugin())):
        hit()
        return {
            name: min(timeit.repeat(step, number=LOOPS, repeat=repeat)) / LOOPS * 1e9
            for name, step in steps.items()
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=100)
    table = Table("step", "ns")
    for name, nanoseconds in measure(parser.parse_args().repeat).items():
        table.add_row(name, f"{nanoseconds:.0f}")
    table.add_row("limit", f"{LIMIT:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
