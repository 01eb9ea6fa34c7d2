"""The checks of ``selfcheck``: one call each, against the oracle, with a witness of what ran."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from fla_core.cli.calls import measure
from fla_core.cli.calls.measure import Gold
from fla_core.cli.calls.problem import Problem, base_inputs, make
from fla_core.contracts import public_names
from fla_core.dispatch import reload_env
from fla_core.errors import NoImplementationError, PluginLoadError, PolicyError

TOKENS = 80
"""One chunk of 64 and a part of the next."""

CASES: dict[str, tuple[int, ...] | None] = {"dense": None, "varlen": (0, 17, 17, TOKENS)}
"""Boundaries by name of the case; the packed one has an empty sequence."""

Events = Callable[[], list[dict[str, Any]]]


@dataclass(slots=True)
class Check:
    """One operator in one case; see :mod:`fla_core.cli.selfcheck` for the fields."""

    operator: str
    case: str
    status: str = "error"
    planned: str = ""
    ran: str = ""
    gradients: bool = False
    errors: dict[str, float] = field(default_factory=dict)
    bound: float = 0.0
    seconds: float = 0.0
    text: str = ""

    @property
    def worst(self) -> str:
        """The output or gradient that is furthest off; ``""`` before there is any."""
        return max(self.errors, key=lambda name: self.errors[name], default="")

    def to_json(self) -> dict[str, Any]:
        """The fields as plain data; an infinite error becomes a string."""
        finite = {n: e if e < float("inf") else "infinite" for n, e in self.errors.items()}
        return {**asdict(self), "errors": finite, "worst": self.worst}


def check_all(
    names: Sequence[str],
    device: torch.device,
    dtype: torch.dtype,
    backend: str | None,
    size: int,
    tell: Callable[[str], object] = lambda text: None,
) -> list[Check]:
    """Check every named operator, dense and packed.

    Raises:
        PolicyError: the policy cannot be understood.
    """
    checks, golds = [], dict[Any, Gold]()
    with witness() as events:
        for name in names:
            for case, bounds in CASES.items():
                tell(f"checking {name} {case}")
                check = Check(name, case)
                checks.append(check)
                problem = _problem(name, bounds, dtype, device, size, grad=True)
                _guarded(check, problem, backend, golds, events)
                if check.status == "refused":
                    problem = _problem(name, bounds, dtype, device, size, grad=False)
                    _guarded(check, problem, backend, golds, events)
    return checks


def _problem(
    name: str,
    bounds: tuple[int, ...] | None,
    dtype: torch.dtype,
    device: torch.device,
    size: int,
    grad: bool,
) -> Problem:
    rows, sequences = (2, 2) if bounds is None else (1, len(bounds) - 1)
    sizes = {"B": rows, "N": sequences, "T": TOKENS, "H": 2, "HV": 4, "K": size, "V": size}
    contract, _ = public_names()[name]
    optional, flags = base_inputs(name, contract), frozenset({"final_state"})
    return make(
        name, sizes, dtype, device, optional=optional, flags=flags, bounds=bounds, grad=grad
    )


def _guarded(
    check: Check, problem: Problem, backend: str | None, golds: dict[Any, Gold], events: Events
) -> None:
    """Fill in a check; whatever the implementation raises is its result."""
    try:
        _fill(check, problem, backend, golds, events)
    except PolicyError:
        raise
    except (NoImplementationError, PluginLoadError) as error:
        check.status, check.text = "refused", str(error)
    except Exception as error:
        check.status, check.text = "error", f"{type(error).__name__}: {error}"


def _fill(
    check: Check, problem: Problem, backend: str | None, golds: dict[Any, Gold], events: Events
) -> None:
    prepared = problem.plan(backend)
    check.planned = prepared.plan.decision.plan
    check.gradients, check.text = bool(problem.trained), ""
    # Names of one contract share their tensors, and so the oracle's answer.
    key = (problem.contract.name, check.case, tuple(problem.present), problem.trained)
    if key not in golds:
        golds[key] = measure.gold(problem)
    right = golds[key]
    events()
    start = time.perf_counter()
    outputs = problem.run(backend)
    answers = {**outputs, **measure.gradients(problem, outputs, right.cotangents)}
    # Reading the answers waits for the device.
    check.errors = {n: measure.error(problem, n, x, right) for n, x in answers.items()}
    check.seconds = time.perf_counter() - start
    check.bound = measure.bound(problem)
    _judge(check, events())


def _judge(check: Check, events: list[dict[str, Any]]) -> None:
    ran = {event["direction"]: event["plan"] for event in events if event["event"] == "call"}
    check.ran = " / ".join(dict.fromkeys(ran.values()))
    wanted = ("forward", "backward") if check.gradients else ("forward",)
    check.status = "fail"
    if ran != dict.fromkeys(wanted, check.planned):
        seen = ", ".join(f"{direction} of {plan}" for direction, plan in ran.items()) or "nothing"
        check.text = f"planned {check.planned}, but what ran was {seen}"
    elif wrong := {n: e for n, e in check.errors.items() if not e <= check.bound}:
        listed = ", ".join(f"{name} {error:.3g}" for name, error in wrong.items())
        check.text = f"{check.ran}: off by more than {check.bound:g} units: {listed}"
    else:
        check.status = "pass"


@contextmanager
def witness() -> Iterator[Events]:
    """Have dispatch write down each call; yields a function that reads what is new."""
    before = os.environ.get("FLA_TRACE")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "calls.jsonl")
        path.touch()
        read = 0

        def new() -> list[dict[str, Any]]:
            nonlocal read
            lines = path.read_text(encoding="utf-8").splitlines()
            fresh, read = lines[read:], len(lines)
            return [json.loads(line) for line in fresh]

        os.environ["FLA_TRACE"] = f"calls:{path}"
        try:
            reload_env()
            yield new
        finally:
            del os.environ["FLA_TRACE"]
            if before is not None:
                os.environ["FLA_TRACE"] = before
            reload_env()
