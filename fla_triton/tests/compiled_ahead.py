"""Where kernels of first calls are compiled: ``python -m compiled_ahead ARCH [--kernels MODULE]``.

Calls of every contract go the way of an implementation on a chip that is not there; what takes the
place of the compiler notes the thread it runs in. Prints a JSON line a call: its contract, what was
asked of it, how many kernels were compiled in threads and how many by the call itself, and whether
torch's symbolic shapes are imported, which takes half a second.

    --alone           on a busy machine, where all must be compiled by the calls
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.runtime.driver import driver

from compile_only.cases import Subject, subjects
from compile_only.driver import Pretended, Skipping
from compile_only.targets import Target, target
from fla_triton import launch, together
from fla_triton.profiles import EVERY
from fla_triton.serve import kernels_for, served
from specialised import called

CALLS = {"chunk": (200, 0), "packed": (210, 3), "decode": (1, 0)}


class Nothing:
    """A kernel that does nothing."""

    metadata = SimpleNamespace(target=SimpleNamespace(backend="none"))
    function = packed_metadata = None

    def launch_metadata(self, *arguments: Any) -> None:
        """There is none."""

    def run(self, *arguments: Any) -> None:
        """Do nothing."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.run


COMPILED: list[str] = []
"""The thread of each kernel."""


def compiled(source: Any, **others: Any) -> Nothing:
    """Take the place of the compiler."""
    COMPILED.append(threading.current_thread().name)
    return Nothing()


def counted(subject: Subject, chip: Target) -> Iterator[dict[str, Any]]:
    """What was compiled where, call by call; kernels of one are not compiled for the next."""
    if subject.kernels is None:
        kernels = kernels_for(subject.row.family, f"fla_backend_{chip.backend}", chip.profile.arch)
    else:
        kernels = subject.kernels(chip.profile)
    implementation = served(lambda index: kernels)

    def told(what: str) -> dict[str, Any]:
        by_call = COMPILED.count(threading.main_thread().name)
        found = {"contract": subject.row.contract, "what": what}
        found |= {"threads": len(COMPILED) - by_call, "call": by_call}
        found["symbolic"] = "torch.fx.experimental.symbolic_shapes" in sys.modules
        COMPILED.clear()
        return found

    for what, (tokens, packed) in CALLS.items():
        call = called(subject, tokens, packed)
        given = {name: x for name, x in call.tensors.items() if x is not None}
        for x in given.values():
            x.requires_grad_()
        save = what != "decode"
        with torch.no_grad():
            outputs, residuals = implementation.forward(call, save)
        yield told(what)
        if save:
            for needs in (frozenset(given), frozenset({"q"})):
                grads = [torch.zeros_like(outputs[0]), None]
                implementation.backward(call, residuals, grads, needs)
                yield told(f"{what}, gradients of {len(needs)}")


def main() -> None:
    """Call and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("arch", choices=EVERY, metavar="ARCH")
    parser.add_argument("--kernels", default="")
    parser.add_argument("--alone", action="store_true")
    options = parser.parse_args()
    together.idle_cores = lambda: 1 if options.alone else 4
    own = import_module(options.kernels).FAMILIES if options.kernels else None
    chip = target(options.arch)
    driver.set_active(Pretended(chip, Skipping()))
    triton.compiler.compile = compiled  # kernels remember the one they meet first
    for subject in subjects(own):
        for line in counted(subject, chip):
            print(json.dumps(line), flush=True)
        launch._compiled.clear()


if __name__ == "__main__":
    main()
