"""Which kernels random lengths would compile: ``python -m specialised ARCH [--kernels MODULE]``.

Host code runs on a chip that is not there, and Triton is asked about each launch what it would
compile for it; nothing is compiled. Calls of every kind come first, a few tokens and many, dense
and packed, then 50 of random lengths: one that wants a kernel of its own would make its user wait.
Prints a line a contract; exits with status 1 if a later length compiles something.

    --kernels MODULE  a chip's own kernels, its ``FAMILIES``, in place of the portable ones
    --only TEXT       contracts of these names, a pattern
    --control         have Triton look at every number, which must be found
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from importlib import import_module
from itertools import accumulate
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from compile_only.cases import STATES, Subject, subjects
from compile_only.driver import Pretended, Skipping
from compile_only.targets import Target, target
from fla_core.call import Call
from fla_core.cli.calls.bench.recipes import mixed_lengths
from fla_core.contracts import CONTRACTS
from fla_core.seqlens import SeqLens
from fla_triton.profiles import EVERY
from fla_triton.serve import kernels_for

HEADS, DIM = 2, 64
FIRST = ((7, 0), (9, 3), (61, 0), (57, 4), (9001, 0), (9007, 2), (4099, 9))
"""Tokens and packed sequences (0: a dense row) of one call of each kind."""

RANDOM = 50


def lengths(draw: random.Random) -> tuple[int, int]:
    """Tokens and packed sequences of one more call."""
    tokens = draw.choice((draw.randint(1, 64), draw.randint(65, 4096), draw.randint(4097, 9999)))
    return tokens, min(tokens, draw.randint(1, 9)) if draw.random() < 0.5 else 0


def called(subject: Subject, tokens: int, packed: int) -> Call:
    """A call of an implementation; its numbers are zeros, for nobody computes."""
    contract, row = CONTRACTS[subject.row.contract], subject.row
    features = STATES | {*row.required} | ({"g", "gk", "gv", "beta_v"} & {*row.features})
    sizes = {"B": 1, "N": packed or 1, "T": tokens, "H": HEADS, "HV": HEADS, "K": DIM, "V": DIM}
    tensors: dict[str, Tensor | None] = {}
    for spec in contract.inputs:
        axes = spec.alternative.split() if f"{spec.name}_v" in features else spec.axes
        shape = [sizes.get(letter, 1) for letter in axes]
        dtype = torch.bfloat16 if spec.dtype == "activation" else torch.float32
        there = not spec.optional or spec.name in features
        tensors[spec.name] = torch.zeros(shape, dtype=dtype) if there else None
    seqlens = None
    if packed:
        bounds = (0, *accumulate(mixed_lengths(tokens, packed)))
        seqlens = SeqLens(torch.tensor(bounds), bounds)
    return Call(contract, "chunk", tensors, 1.0, features, seqlens)


def run(kernels: Any, call: Call) -> None:
    """Both directions."""
    outputs, residuals = kernels.forward(call, True)
    grads = [torch.zeros_like(x) for x in outputs]
    needs = frozenset(name for name, x in call.tensors.items() if x is not None)
    kernels.backward(call, residuals, grads, needs)


@contextmanager
def asked(chip: Target, record: Callable[[str, str], None]) -> Iterator[None]:
    """Note name and key of each kernel that Triton would compile, and launch nothing."""

    def hook(*, key: str, fn: Any, **others: Any) -> bool:
        record(fn.name, key)
        return True

    driver.set_active(Pretended(chip, Skipping()))
    triton.knobs.runtime.jit_cache_hook = hook
    try:
        yield
    finally:
        triton.knobs.runtime.jit_cache_hook = None
        driver.set_active(None)


def late(subject: Subject, chip: Target) -> tuple[int, list[str]]:
    """How many kernels a contract has, and what was compiled after the first calls."""
    if subject.kernels is None:
        kernels = kernels_for(subject.row.family, f"fla_backend_{chip.backend}", chip.profile.arch)
    else:
        kernels = subject.kernels(chip.profile)
    seen: set[tuple[str, str]] = set()
    found: list[str] = []
    draw = random.Random(0)
    for index in range(len(FIRST) + RANDOM):
        tokens, packed = FIRST[index] if index < len(FIRST) else lengths(draw)
        known = set(seen)
        with asked(chip, lambda name, key: seen.add((name, key))):
            run(kernels, called(subject, tokens, packed))
        if index >= len(FIRST):
            found += [f"{name} at {tokens} tokens, {packed} packed" for name, _ in seen - known]
    return len(seen), found


def _look_at_every_number() -> None:
    """Plant the fault: forget which numbers Triton is told not to look at."""
    original = JITFunction.__init__

    def forgetful(self: Any, fn: Any, *arguments: Any, **options: Any) -> None:
        options.pop("do_not_specialize", None)
        original(self, fn, *arguments, **options)

    JITFunction.__init__ = forgetful  # type: ignore[method-assign]


def main() -> int:
    """Ask, and tell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("arch", choices=EVERY, metavar="ARCH")
    parser.add_argument("--kernels", default="")
    parser.add_argument("--only", default="*")
    parser.add_argument("--control", action="store_true")
    options = parser.parse_args()
    if options.control:
        _look_at_every_number()
    own = import_module(options.kernels).FAMILIES if options.kernels else None
    chip, faults = target(options.arch), 0
    for subject in subjects(own):
        if not fnmatchcase(subject.row.contract, options.only):
            continue
        count, found = late(subject, chip)
        print(f"{subject.row.contract:18} {count} kernels, {len(found)} of them late")
        for text in found[:5]:
            print(f"  {text}")
        faults += len(found) + (not count)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
