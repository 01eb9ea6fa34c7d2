"""Cases for the interpreter, and a process of its own that runs them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import programs
from fla_conformance.case import Case

STATES = ("initial_state", "final_state")
PACKED = (65, 0, 1, 130, 17)
FILLS, IDLE = 2, 132
"""Multiprocessors of the pretended chip: of two, one head leaves none idle; time is not cut."""


def case(
    contract: str,
    dtype: str,
    sizes: tuple[int, int, int, int, int],
    features: tuple[str, ...],
    lengths: tuple[int, ...] | None = None,
    *,
    direction: str = "bwd",
    **more: str,
) -> Case:
    """A case of sizes B, T, H, K and V; a backward one checks outputs too."""
    batch, tokens, heads, keys, values = sizes
    if lengths is not None:
        batch, tokens, features = 1, sum(lengths), (*features, "varlen")
    named = {"B": batch, "T": tokens, "H": heads, "HV": heads, "K": keys, "V": values}
    form = more.pop("form", "chunk")
    return Case(contract, direction, dtype, form, named, frozenset(features), lengths, **more)


def grouped(one: Case, group: int = 2) -> Case:
    """The case with several value heads for each head of q and k."""
    return one.but(sizes={**one.sizes, "HV": group * one.sizes["H"]})


class Interpreter:
    """A process that judges cases as they come.

    Starting one takes 3.4 s of a processor, most cases less than one.
    """

    def __init__(self) -> None:
        # A pipe that nobody reads would fill.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "interpreter"],
            cwd=programs.FOLDER,
            env=programs.ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        atexit.register(self._process.kill)

    def judge(self, one: Case, multiprocessors: int, as_declared: bool = True) -> str:
        """What is wrong with the answer to a case, ``""`` if nothing is.

        Raises:
            RuntimeError: the process ended.
        """
        asked, answered = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answered is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps([one.to_json(), multiprocessors, as_declared]), file=asked, flush=True)
        line = answered.readline()
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            raise RuntimeError(f"{one.id}: ended with status {code}: {self._errors.read()}")
        answer = json.loads(line)
        assert answer["id"] == one.id
        return str(answer["failure"])

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


@functools.cache
def _interpreter() -> Interpreter:
    return Interpreter()


def failures(cases: Sequence[tuple[Case, int]], as_declared: bool = True) -> dict[str, str]:
    """Run cases, each with the multiprocessors of its pretended chip.

    All calls of one test run share a process; after an error the next call starts another.

    Returns:
        what was wrong, by case; empty when every answer was right.
    """
    interpreter = _interpreter()
    try:
        found = {one.id: interpreter.judge(one, count, as_declared) for one, count in cases}
    except BaseException:
        interpreter.end()  # it may still be at a case that is not waited for
        _interpreter.cache_clear()
        raise
    return {name: failure for name, failure in found.items() if failure}
