"""What the core adds to a call: a hit in the plans, and a whole public operator.

Usage: ``python dispatch_overhead.py [--repeat N]``. Prints nanoseconds a call, the best of N short
runs, beside the limits of 2 microseconds for a hit and of 8 for an operator without gradients. An
operator is called with one token, on an implementation that returns what it has at hand; calling
that implementation directly is subtracted. With gradients the node of autograd is part of the
figure, for which there is no limit.
"""

from __future__ import annotations

import argparse
import timeit
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from fla_core.call import Call
from fla_core.contracts import CONTRACTS, KDA
from fla_core.dispatch.context import policy_text
from fla_core.dispatch.plan import find_plan
from fla_core.dispatch.runtime import sandbox
from fla_core.domain import FLOATS, AxisRange, Domain
from fla_core.ops.kda import chunk_kda
from fla_core.ops.simple_gla import chunk_simple_gla
from fla_core.plugins import Backend, Implementation, hookimpl
from fla_core.plugins.discover import in_memory

PLAN_LIMIT = 2000.0
OPERATOR_LIMIT = 8000.0
LOOPS = 20
"""Few, so that some runs end before the system lets another process in."""

OUTPUT = torch.zeros(1, 1, 1, 16)
OPERATORS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "chunk_kda": ("kda", chunk_kda),
    "chunk_simple_gla": ("simple_gla", chunk_simple_gla),
}


def null_forward(call: object, save: bool) -> object:
    """Return an output that is there already."""
    return (OUTPUT,), ()


def null_backward(call: Call, residuals: object, grads: object, needs: frozenset[str]) -> object:
    """Return gradients that cost as little as any can: autograd wants them to be its own."""
    return {name: torch.empty_like(call.tensors[name]) for name in needs}


def plugin() -> ModuleType:
    """A backend that constrains K, so that the key has a size in it."""
    module = ModuleType("narrow")
    optional = ("final_state", "g")
    axes = {"K": AxisRange(16, 256)}

    @hookimpl
    def fla_backend() -> Backend:
        return Backend("narrow", ("cpu",), "torch")

    @hookimpl
    def fla_implementations() -> list[Implementation]:
        return [
            Implementation(
                contract,
                CONTRACTS[contract].revision,
                "chunk",
                null_forward,
                null_backward,
                Domain(FLOATS, axes, features=_known(contract, optional)),
                strided=True,
            )
            for contract in ("kda", "simple_gla")
        ]

    module.fla_backend = fla_backend  # type: ignore[attr-defined]
    module.fla_implementations = fla_implementations  # type: ignore[attr-defined]
    return module


def _known(contract: str, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: "optional" for name in names if name in CONTRACTS[contract].features}


def best(step: Callable[[], object], repeat: int) -> float:
    """Nanoseconds of one call, the best of ``repeat`` runs."""
    step()
    return min(timeit.repeat(step, number=LOOPS, repeat=repeat)) / LOOPS * 1e9


def plan_hit() -> Callable[[], object]:
    """Building the key of a plan and looking it up."""
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

    return hit


def arguments(name: str, gradients: bool) -> list[torch.Tensor]:
    """One token, one head."""
    contract, _ = OPERATORS[name]
    q, k, v = (torch.ones(1, 1, 1, 16, requires_grad=gradients) for _ in range(3))
    if contract == "kda":
        return [q, k, v, torch.zeros(1, 1, 1, 16), torch.ones(1, 1, 1)]
    return [q, k, v, torch.zeros(1, 1, 1)]


def added(name: str, gradients: bool, repeat: int) -> float:
    """What a public operator adds to its implementation, in nanoseconds."""
    contract, operator = OPERATORS[name]
    tensors = arguments(name, gradients)
    named = dict(zip(CONTRACTS[contract].input_names, tensors, strict=False))
    call = Call(CONTRACTS[contract], "chunk", named, 0.25, frozenset())
    needs = frozenset({"q", "k", "v"})
    weight = torch.ones_like(OUTPUT)

    def whole() -> None:
        o = operator(*tensors)[0]
        if gradients:
            torch.autograd.grad(o, tensors[:3], weight)

    def direct() -> None:
        null_forward(call, gradients)
        if gradients:
            null_backward(call, (), (weight,), needs)

    return best(whole, repeat) - best(direct, repeat)


def measure(repeat: int) -> list[tuple[str, float, float | None]]:
    """Step, nanoseconds and limit."""
    rows: list[tuple[str, float, float | None]] = []
    with sandbox(in_memory("narrow", plugin())):
        rows.append(("empty call", best(lambda: None, repeat), None))
        rows.append(("policy text", best(lambda: policy_text(None), repeat), None))
        rows.append(("plan, hit", best(plan_hit(), repeat), PLAN_LIMIT))
        rows += [(f"{n} adds", added(n, False, repeat), OPERATOR_LIMIT) for n in OPERATORS]
        rows += [(f"{n} adds, with backward", added(n, True, repeat), None) for n in OPERATORS]
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=500)
    table = Table("step", "ns", "limit")
    for name, nanoseconds, limit in measure(parser.parse_args().repeat):
        table.add_row(name, f"{nanoseconds:.0f}", "" if limit is None else f"{limit:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
