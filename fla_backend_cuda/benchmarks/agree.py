"""What must agree between delta rules: chunks of every length, operators that coincide, long calls.

    python agree.py CONTRACT [--only chunks,limits,long] [--plugin cuda] [--device cuda:0]

``chunks``: the portable kernels in chunks of 16, 32 and 64 tokens, and the plugin's own choice.
``limits``: an operator where it is another one, judged by the other's definition: gates of one for
the delta rule, one gate for all channels for the gated delta rule, one strength for all channels
for KDA. ``long``: 262144 tokens.

Outputs, final states and all gradients are compared with the chunked reference in float64 on the
same device. Errors are in units of what rounding the inputs does, as in
:mod:`fla_core.cli.calls.measure`; the contract's budget is the limit.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fla_core.cli.calls import measure
from fla_core.cli.calls.bench.gate import Function, differentiated
from fla_core.cli.calls.bench.providers import provider
from fla_core.cli.calls.bench.recipes import Recipe, mixed_lengths, recipes
from fla_core.cli.calls.bench.workload import Workload, outputs_of
from fla_core.cli.calls.check import witness
from fla_core.cli.calls.problem import Problem
from fla_core.dispatch.runtime import sandbox
from fla_core.ops import chunk_gated_delta_rule, chunk_gdn2, chunk_kda
from fla_core.plugins import Backend, Implementation, Probe, detect, hookimpl
from fla_core.plugins.discover import in_memory
from fla_triton import declared
from fla_triton.plan import Problem as Sizes
from fla_triton.profiles import EVERY, Profile
from fla_triton.serve import served

FAMILIES = {"delta": "delta_plan", "delta_channel": "delta_channel_plan"}
"""Families of delta rules, with the modules that plan them."""

CONTRACTS = ("delta_rule", "gated_delta_rule", "kda", "gdn2")
LENGTHS = (16, 32, 64)
TOKENS, LONG = 300, 262144

Errors = Mapping[str, float]


def stated(operator: str) -> Recipe:
    """The plain call of an operator, a state going in and out."""
    plain = recipes(operator)[0]
    inputs, flags = (*plain.inputs, "initial_state"), frozenset({"final_state"})
    return Recipe(operator, inputs=inputs, flags=flags, keywords=plain.keywords)


def problems(operator: str, device: torch.device) -> Iterator[Problem]:
    """A dense and a packed call of 300 tokens, in which no chunk divides a sequence."""
    sizes = {"B": 1, "T": TOKENS, "H": 2, "HV": 2, "K": 128, "V": 128}
    for lengths in (None, mixed_lengths(TOKENS, 4)):
        yield Workload(stated(operator), sizes, lengths, torch.bfloat16).make(device, grad=True)


def judged(problem: Problem, function: Function, right: measure.Gold) -> tuple[Errors, set[str]]:
    """Errors of outputs and gradients, and the plans that ran."""
    with witness() as events:
        answers = differentiated(problem, function, right.cotangents)
        plans = {event["plan"] for event in events() if event["event"] == "call"}
    return {n: measure.error(problem, n, x, right) for n, x in answers.items()}, plans


def told(what: str, problem: Problem, found: tuple[Errors, set[str]], plugin: str) -> bool:
    """Print a comparison; True when it holds and the plugin made it."""
    errors, plans = found
    bound = measure.bound(problem)
    right = all(error <= bound for error in errors.values())
    ran = bool(plans) and all(plan.startswith(f"{plugin}:") for plan in plans)
    listed = " ".join(f"{name} {error:.2f}" for name, error in errors.items())
    verdict = "" if right and ran else "FAIL " if ran else f"FAIL not {plugin}: "
    print(f"{what:34} {verdict}{listed} (limit {bound:g}) {', '.join(sorted(plans))}", flush=True)
    return right and ran


def compared(what: str, problem: Problem, right: measure.Gold, plugin: str) -> bool:
    """Compare a call of the problem's own operator."""
    recipe = stated(f"chunk_{problem.contract.name}")
    function = provider("ours", plugin).function(recipe, problem)
    return told(what, problem, judged(problem, function, right), plugin)


def chunks(contract: str, device: torch.device, plugin: str) -> bool:
    """Compare chunk lengths."""
    held = True
    for problem in problems(f"chunk_{contract}", device):
        kind = "dense" if problem.bounds is None else "packed"
        right = measure.gold(problem, measure.by_chunks, device)
        held &= compared(f"{contract} {kind} as planned", problem, right, plugin)
        for size in LENGTHS:
            with in_chunks(size, device) as name:
                held &= compared(f"{contract} {kind} chunks of {size}", problem, right, name)
    return held


@contextmanager
def in_chunks(size: int, device: torch.device) -> Iterator[str]:
    """A plugin of the portable kernels in chunks of one length; its name."""
    name = f"chunks{size}"
    arch = detect.gpu_arch(torch, device.index or 0) if device.type == "cuda" else "sm90"
    module: Any = ModuleType(f"agree_{name}")
    for family, planner in FAMILIES.items():
        host = import_module(f"fla_triton.{family}")
        kernels = host.Kernels(EVERY[arch], sized(size, planner, EVERY[arch]))
        setattr(module, family, served(lambda index, kernels=kernels: kernels))

    @hookimpl
    def fla_backend() -> Backend:
        return Backend(name=name, targets=(device.type,), toolchain="triton", priority=1)

    @hookimpl
    def fla_implementations() -> list[Implementation]:
        named = declared.implementations(module.__name__, ())
        return [one for one in named if one.forward.split(":")[1].split(".")[0] in FAMILIES]

    @hookimpl
    def fla_probe(device: str) -> Probe:
        return Probe(ok=True, versions={})

    module.fla_backend, module.fla_probe = fla_backend, fla_probe
    module.fla_implementations = fla_implementations
    sys.modules[module.__name__] = module
    with sandbox(in_memory(name, module), environ=os.environ):
        yield name


def sized(size: int, planner: str, profile: Profile) -> Callable[[Sizes, str], Any]:
    """Choose the default tiles, in chunks of one length."""
    planned: Any = import_module(f"fla_triton.{planner}")

    def choose(problem: Sizes, direction: str) -> Any:
        return replace(planned.default_tiles(problem, direction, profile), C=size)

    return choose


def limits(contract: str, device: torch.device, plugin: str) -> bool:
    """Compare the operator that has this one as a limit with the definition of this one."""
    if contract not in LIMITS:
        print(f"{contract}: nothing that is timed here has it as a limit")
        return True
    what, call = LIMITS[contract]
    held = True
    for problem in problems(f"chunk_{contract}", device):
        kind = "dense" if problem.bounds is None else "packed"
        right = measure.gold(problem, measure.by_chunks, device)

        def function(given: Problem) -> dict[str, Tensor]:
            cu = given.cu_seqlens
            more = {"output_final_state": True, "backend": plugin}
            more |= {} if cu is None else {"cu_seqlens": cu.long()}
            return outputs_of(call(given.present, more), ("o", "final_state"))

        held &= told(f"{what}, {kind}", problem, judged(problem, function, right), plugin)
    return held


def _ungated(given: Mapping[str, Tensor], more: Mapping[str, Any]) -> Any:
    g = torch.zeros_like(given["beta"], dtype=torch.float32)
    return chunk_gated_delta_rule(**given, g=g, **more)


def _one_gate(given: Mapping[str, Tensor], more: Mapping[str, Any]) -> Any:
    g = given["g"].unsqueeze(-1).expand(*given["g"].shape, given["k"].shape[-1])
    return chunk_kda(**{**given, "g": g}, **more)


def _one_strength(given: Mapping[str, Tensor], more: Mapping[str, Any]) -> Any:
    kept = {name: tensor for name, tensor in given.items() if name != "beta"}
    beta, k, v = (given[name] for name in ("beta", "k", "v"))
    b, w = (beta.unsqueeze(-1).expand(*beta.shape, x.shape[-1]) for x in (k, v))
    return chunk_gdn2(**kept, b=b, w=w, **more)


LIMITS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "delta_rule": ("gated_delta_rule with g = 0", _ungated),
    "gated_delta_rule": ("kda with one gate a head", _one_gate),
    "kda": ("gdn2 with one strength a token", _one_strength),
}


def long(contract: str, device: torch.device, plugin: str, tokens: int = LONG) -> bool:
    """One long call."""
    recipe = stated(f"chunk_{contract}")
    sizes = {"B": 1, "T": tokens, "H": 2, "HV": 2, "K": 64, "V": 64}
    problem = Workload(recipe, sizes, None, torch.bfloat16).make(device, grad=True)
    right = measure.gold(problem, measure.by_chunks, device)
    return compared(f"{contract} T{tokens}", problem, right, plugin)


def main() -> int:
    """Compare what is asked for; 1 when something disagrees."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("contract", choices=CONTRACTS)
    parser.add_argument("--only", default="chunks,limits,long")
    parser.add_argument("--plugin", default="cuda")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tokens", type=int, default=LONG, help="of the long call")
    options = parser.parse_args()
    device, held = torch.device(options.device), True
    for name in options.only.split(","):
        if name == "long":
            held &= long(options.contract, device, options.plugin, options.tokens)
        else:
            held &= {"chunks": chunks, "limits": limits}[name](
                options.contract, device, options.plugin
            )
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
