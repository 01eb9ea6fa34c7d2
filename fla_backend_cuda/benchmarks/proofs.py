"""What must hold of an operator beside its numbers, one operator a process.

    python proofs.py CONTRACT [--variant chunk] [--only lengths,repeat,capture]
    python proofs.py CONTRACT --only odd        under compute-sanitizer --tool memcheck

``lengths``: 50 random lengths compile nothing new after one call of each kind. Needs an empty
TRITON_CACHE_DIR, in which what was compiled is counted. ``repeat``: 50 runs give the same bits.
``capture``: a captured graph, replayed on other inputs, gives the bits of an eager call. ``odd``:
sizes that no tile divides, and 2000 packed sequences, for a memory checker to watch.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from calls import narrowed, timed_recipes
from torch import Tensor

from fla_core.cli.calls.bench import recipes
from fla_core.cli.calls.bench.providers import provider
from fla_core.cli.calls.bench.recipes import Recipe
from fla_core.cli.calls.bench.runner import first_tensor
from fla_core.cli.calls.bench.workload import Workload
from fla_core.cli.calls.problem import Problem
from fla_core.contracts import CONTRACTS
from fla_core.dispatch.context import use

RUNS = 50
KINDS = ((7, 0), (9, 3), (61, 0), (57, 4), (9001, 0), (9007, 2), (4099, 9))
"""Tokens and packed sequences (0: a dense row) of one call of each kind: a few tokens and many,
dense and packed, time cut into segments and whole. Each kind has kernels of its own."""

ODD = ((2, 1, 1, 17, 33), (1, 65, 3, 60, 100), (1, 200, 2, 128, 128), (2, 130, 1, 3, 8))

MANY = (3, 0, 1, 17, 2) * 400
"""Lengths of packed sequences, most of them shorter than any tile."""


def tensors(problem: Problem, recipe: Recipe, gradients: bool) -> list[Tensor]:
    """Every output, and every gradient if asked for."""
    call = provider("ours").bound(recipe, problem)
    with torch.set_grad_enabled(gradients):
        o = first_tensor(call())
    if not gradients:
        return [o]
    leaves = [problem.present[name] for name in sorted(problem.trained)]
    weight = torch.sin(torch.arange(o.numel(), device=o.device)).view(o.shape).to(o.dtype)
    return [o.detach(), *torch.autograd.grad(o, leaves, weight)]


def shaped(recipe: Recipe, device: torch.device, *sizes: int, packed: int = 0) -> Problem:
    """A problem of ``B T H K V``."""
    named = dict(zip(("B", "T", "H", "K", "V"), sizes, strict=True))
    lengths = recipes.mixed_lengths(named["T"], packed) if packed else None
    return made(recipe, device, named, lengths)


def made(
    recipe: Recipe, device: torch.device, sizes: dict[str, int], lengths: tuple[int, ...] | None
) -> Problem:
    """A problem of as many value heads as heads."""
    named = {**sizes, "HV": sizes["H"]}
    return Workload(recipe, named, lengths, torch.bfloat16).make(device, grad=True)


def lengths(recipe: Recipe, device: torch.device) -> str:
    """Count the kernels that each of 50 random lengths compiles after a call of every kind."""
    if device.type != "cuda":
        return "nothing is compiled for this device"
    draw, compiled = random.Random(0), []
    for index in range(len(KINDS) + RUNS):
        tokens, packed = KINDS[index] if index < len(KINDS) else _drawn(draw)
        tensors(shaped(recipe, device, 1, tokens, 2, 128, 128, packed=packed), recipe, True)
        compiled.append(_compiled())
    if not compiled[-1]:
        return "FAIL nothing was compiled into TRITON_CACHE_DIR, so nothing was counted"
    late = compiled[-1] - compiled[len(KINDS) - 1]
    text = f"{compiled[-1]} kernels, {late} of them by {RUNS} lengths after one call of each kind"
    return text if not late else f"FAIL {text}"


def _drawn(draw: random.Random) -> tuple[int, int]:
    tokens = draw.choice((draw.randint(1, 64), draw.randint(65, 4096), draw.randint(4097, 9999)))
    return tokens, min(tokens, draw.randint(1, 9)) if draw.random() < 0.5 else 0


def _compiled() -> int:
    return sum(1 for _ in Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin"))


def repeat(recipe: Recipe, device: torch.device) -> str:
    """Compare the bits of 50 runs."""
    for packed in (0, 5):
        problem = shaped(recipe, device, 1, 2100, 4, 128, 128, packed=packed)
        first = tensors(problem, recipe, True)
        for run in range(1, RUNS):
            again = tensors(problem, recipe, True)
            differ = [i for i, (a, b) in enumerate(zip(first, again, strict=True)) if _differ(a, b)]
            if differ:
                return f"FAIL run {run} differs in tensors {differ} (packed {packed})"
    return f"{RUNS} runs bitwise equal, dense and packed"


def capture(recipe: Recipe, device: torch.device) -> str:
    """Replay captured graphs on other inputs and compare with eager calls."""
    if device.type != "cuda":
        return "no graphs on this device"
    for gradients in (False, True):
        problem = shaped(recipe, device, 2, 1000, 2, 128, 128)
        other = shaped(recipe, device, 2, 1000, 2, 128, 128)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                tensors(problem, recipe, gradients)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = tensors(problem, recipe, gradients)
        with torch.no_grad():
            for name, x in problem.present.items():
                # Gates stay negative and strengths positive.
                other.present[name].copy_(0.5 * x.flip(0))
                x.copy_(other.present[name])
        graph.replay()
        torch.cuda.synchronize()
        eager = tensors(other, recipe, gradients)
        differ = [i for i, (a, b) in enumerate(zip(captured, eager, strict=True)) if _differ(a, b)]
        if differ:
            return f"FAIL gradients={gradients}: replay differs in tensors {differ}"
    return "forward and backward replayed, bitwise equal to eager calls"


def odd(recipe: Recipe, device: torch.device) -> str:
    """Run sizes that no tile divides, and many sequences."""
    for sizes in ODD:
        for packed in (0, 3):
            if packed and (sizes[0] > 1 or sizes[1] < packed):
                continue
            tensors(shaped(recipe, device, *sizes, packed=packed), recipe, True)
    sizes_of_many = {"B": 1, "T": sum(MANY), "H": 1, "K": 64, "V": 64}
    tensors(made(recipe, device, sizes_of_many, MANY), recipe, True)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return f"{len(ODD)} odd shapes ran, and {len(MANY)} sequences"


def _differ(a: Tensor, b: Tensor) -> bool:
    return not torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


PROOFS: dict[str, Callable[[Recipe, torch.device], str]] = {
    "lengths": lengths,
    "repeat": repeat,
    "capture": capture,
    "odd": odd,
}


def proven(contract: str, device: torch.device, only: list[str]) -> Iterator[tuple[str, str, str]]:
    """Operator, proof and what came of it. Whatever is raised is a failure."""
    for recipe in timed_recipes(contract):
        for name in only:
            try:
                yield recipe.title, name, PROOFS[name](recipe, device)
            except Exception as error:
                text = str(error).splitlines()[0][:200] if str(error) else ""
                yield recipe.title, name, f"FAIL {type(error).__name__}: {text}"


def main() -> int:
    """Prove what is asked for; 1 when something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contract", choices=list(CONTRACTS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--plugin", default="cuda")
    parser.add_argument("--variant", default="", help="of the plugin's implementations")
    parser.add_argument("--only", default="lengths,repeat,capture")
    options = parser.parse_args()
    device, only = torch.device(options.device), options.only.split(",")
    failed = False
    with narrowed(options.plugin, options.variant), use(options.plugin):
        start = time.monotonic()
        for title, name, text in proven(options.contract, device, only):
            failed |= text.startswith("FAIL")
            seconds, start = time.monotonic() - start, time.monotonic()
            print(f"{title:28} {name:8} {seconds:4.0f} s  {text}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
