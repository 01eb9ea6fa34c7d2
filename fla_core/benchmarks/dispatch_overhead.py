"""What the core adds to a call: a hit in the plans, and a whole public operator.

Usage: ``python dispatch_overhead.py [--repeat N] [--device cuda]``. Prints nanoseconds a call, the
best of N short runs, beside the limits of 2 microseconds for a hit, of 8 for an operator without
gradients and of 100 for one with them. An operator is called with one token, on an implementation
that allocates and does no more; calling that implementation directly is subtracted. With gradients
what is subtracted is a bare autograd node around the same implementation, whose own time stands in
a row before. Runs of both take turns, so that a load on the machine disturbs both alike.
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
from fla_core.plugins import Backend, Implementation, Probe, hookimpl
from fla_core.plugins.discover import in_memory

PLAN_LIMIT = 2000.0
OPERATOR_LIMIT = 8000.0
TRAINING_LIMIT = 100000.0
LOOPS = 5
"""Few, so that some runs end before the system lets another process in."""

OPERATORS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "chunk_kda": ("kda", chunk_kda),
    "chunk_simple_gla": ("simple_gla", chunk_simple_gla),
}


def null_forward(call: Call, save: bool) -> tuple[tuple[torch.Tensor], tuple[()]]:
    """Return an output that nobody has written; autograd would make a kept one its own."""
    return (torch.empty_like(call.tensors["v"]),), ()  # type: ignore[arg-type]


def null_backward(
    call: Call, residuals: object, grads: object, needs: frozenset[str]
) -> dict[str, torch.Tensor]:
    """Return gradients that cost as little as any can: autograd wants them to be its own."""
    return {name: torch.empty_like(call.tensors[name]) for name in needs}


def plugin() -> ModuleType:
    """A backend that constrains K, so that the key has a size in it."""
    module = ModuleType("narrow")
    optional = ("final_state", "g")
    axes = {"K": AxisRange(16, 256)}

    @hookimpl
    def fla_backend() -> Backend:
        return Backend("narrow", ("cpu", "cuda"), "torch")

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

    @hookimpl
    def fla_probe(device: str) -> Probe:
        return Probe(True)

    module.fla_probe = fla_probe  # type: ignore[attr-defined]
    module.fla_backend = fla_backend  # type: ignore[attr-defined]
    module.fla_implementations = fla_implementations  # type: ignore[attr-defined]
    return module


def _known(contract: str, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: "optional" for name in names if name in CONTRACTS[contract].features}


def best(repeat: int, *steps: Callable[[], object]) -> list[float]:
    """Nanoseconds of one call of each step, the best of ``repeat`` runs that take turns."""
    for step in steps:
        step()
    runs = [[timeit.timeit(step, number=LOOPS) for step in steps] for _ in range(repeat)]
    return [min(times) / LOOPS * 1e9 for times in zip(*runs, strict=True)]


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


def arguments(name: str, device: torch.device, gradients: bool) -> list[torch.Tensor]:
    """One token, one head."""
    contract, _ = OPERATORS[name]
    shape = (1, 1, 1, 16)
    q, k, v = (torch.ones(shape, device=device, requires_grad=gradients) for _ in range(3))
    g = torch.zeros(shape if contract == "kda" else shape[:3], device=device)
    return [q, k, v, g, torch.ones(shape[:3], device=device)] if contract == "kda" else [q, k, v, g]


def direct_call(name: str, tensors: list[torch.Tensor]) -> Call:
    """The call as the implementation gets it."""
    contract, _ = OPERATORS[name]
    named = dict(zip(CONTRACTS[contract].input_names, tensors, strict=False))
    return Call(CONTRACTS[contract], "chunk", named, 0.25, frozenset())


def added(name: str, device: torch.device, repeat: int) -> float:
    """What a public operator adds to its implementation, in nanoseconds."""
    _, operator = OPERATORS[name]
    tensors = arguments(name, device, False)
    call = direct_call(name, tensors)
    whole, direct = best(repeat, lambda: operator(*tensors), lambda: null_forward(call, False))
    return whole - direct


def trained(name: str, device: torch.device, repeat: int) -> tuple[float, float]:
    """Forward and backward, in nanoseconds: through a bare node, and what the operator adds."""
    _, operator = OPERATORS[name]
    tensors = arguments(name, device, True)
    call, needs = direct_call(name, tensors), frozenset({"q", "k", "v"})
    weight = torch.ones_like(tensors[2])

    class Bare(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(*given)
            (o,), _ = null_forward(call, True)
            return o

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            found = null_backward(call, ctx.saved_tensors, (grad,), needs)
            return tuple(map(found.get, call.contract.input_names[: len(tensors)]))

    def bare() -> None:
        torch.autograd.grad(Bare.apply(*tensors), tensors[:3], weight)  # type: ignore[no-untyped-call]

    def whole() -> None:
        torch.autograd.grad(operator(*tensors)[0], tensors[:3], weight)

    alone, together = best(repeat, bare, whole)
    return alone, together - alone


def measure(repeat: int, device: torch.device) -> list[tuple[str, float, float | None]]:
    """Step, nanoseconds and limit."""
    small = best(repeat, lambda: None, lambda: policy_text(None), plan_hit())
    rows = list(
        zip(
            ("empty call", "policy text", "plan, hit"), small, (None, None, PLAN_LIMIT), strict=True
        )
    )
    with sandbox(in_memory("narrow", plugin())):
        rows += [(f"{n} adds", added(n, device, repeat), OPERATOR_LIMIT) for n in OPERATORS]
        for name in OPERATORS:
            bare, more = trained(name, device, repeat)
            rows.append((f"bare node of {name}, with backward", bare, None))
            rows.append((f"{name} adds, with backward", more, TRAINING_LIMIT))
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=500)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    options = parser.parse_args()
    device = torch.zeros(0, device=options.device).device  # with its index
    table = Table("step", "ns", "limit")
    for name, nanoseconds, limit in measure(options.repeat, device):
        table.add_row(name, f"{nanoseconds:.0f}", "" if limit is None else f"{limit:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
