"""One process's share of compiling, evaluating and checking; see ``check_and_time.py``.

    python grid_share.py JSON

Compiles what the timed calls and their checks need by calling each once, evaluates the definitions
that they will be compared with, then runs cases of the conformance grid. Each is done by the
process that claims it first. What fails before the grid fails again when it is timed, and is told
then. Results are appended to a file as JSON lines. A case that leaves the device unusable ends the
process, which starts again behind it.
"""

# ruff: noqa: T201

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from calls import anchors, chosen, narrowed, timed_calls

from fla_conformance.case import Case
from fla_conformance.grid import grid
from fla_conformance.result import Outcome
from fla_conformance.run import Target, run_case
from fla_core.cli.calls.bench import gate
from fla_core.cli.calls.bench.anchor import Anchor
from fla_core.cli.calls.bench.golds import Golds
from fla_core.cli.calls.bench.providers import provider
from fla_core.cli.calls.bench.runner import step
from fla_core.cli.calls.bench.workload import Workload
from fla_core.contracts import CONTRACTS

LEVELS = ("L1", "L2")
RESULTS, GOLDS = "results.jsonl", "golds"
"""Where cases and definitions are told of, in the folder of a run."""

T = TypeVar("T")


def main(asked: Mapping[str, Any]) -> None:
    """Do a share and append what was found."""
    torch.set_num_threads(1)
    with narrowed(asked["plugin"], asked["variant"]):
        _share(asked)


def _share(asked: Mapping[str, Any]) -> None:
    found = chosen(asked["plugin"], asked["device"], asked["ops"])
    folder, device = Path(asked["folder"]), torch.device(asked["device"])
    contracts = dict.fromkeys(target.declaration.contract for target in found)
    timed = timed_calls(contracts, asked["shapes"], asked["decode"], torch.bfloat16)
    for workload, direction in _claimed(_called(timed), folder, "call"):
        _compile(workload, direction, device)
    golds = Golds(folder / GOLDS)
    for label, part, grad, right in _claimed(_definitions(timed), folder, "definition"):
        try:
            gate.evaluate_ahead(label, part, device, grad, golds, right)
            _release(device)
        except Exception as error:
            print(f"evaluating {label}: {error}"[:300])
    for target, case, level in _claimed(_cases(found, asked["budget"]), folder, "case"):
        result = run_case(case, target, level)
        usable = result.outcome is not Outcome.CRASH or _usable(device)
        margin = result.margin
        line = {
            "contract": target.declaration.contract,
            "id": result.id,
            "outcome": result.outcome.value,
            "detail": result.detail[:300],
            "margin": 0.0 if margin is None else max(margin.block, margin.token),
            "seconds": round(result.seconds, 2),
        }
        with (folder / RESULTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if not usable:
            os.execv(sys.executable, [sys.executable, __file__, json.dumps(asked)])


def _claimed(listed: Iterable[T], folder: Path, kind: str) -> Iterator[T]:
    """Those that no other process has begun."""
    for index, one in enumerate(listed):
        try:
            (folder / f"{kind}-{index}").touch(exist_ok=False)
        except FileExistsError:
            continue
        yield one


def _cases(found: list[Target], budget: str) -> list[tuple[Target, Case, str]]:
    if budget == "none":
        return []
    size = int(budget) if budget.isdecimal() else budget
    return [
        (target, case, level)
        for target in found
        for level in LEVELS
        for case in grid(CONTRACTS[target.declaration.contract], target.declaration, level, size)
    ]


def _called(timed: list[tuple[Workload, str]]) -> list[tuple[Workload, str]]:
    """What is timed and what is compared before; calls without gradients find most compiled."""
    listed: dict[tuple[str, str], tuple[Workload, str]] = {}
    for workload, direction in timed:
        for label, part in gate.compared(workload).items():
            listed.setdefault((label, direction), (part, direction))
    return sorted(listed.values(), key=lambda call: call[1] != "both")


def _definitions(
    timed: list[tuple[Workload, str]],
) -> list[tuple[str, Workload, bool, gate.Definitions]]:
    """Each definition once, with gradients where a call has any: those of many tokens first."""
    calls = [(*call, gate.DEFINITIONS) for call in timed]
    calls += [(*call, Anchor().definitions) for call in anchors(timed)]
    listed: dict[str, tuple[str, Workload, bool, gate.Definitions]] = {}
    for workload, direction, right in calls:
        for label, part in gate.compared(workload).items():
            listed.setdefault(label, (label, part, direction == "both", right))
    return sorted(listed.values(), key=lambda one: -one[1].sizes["T"])


def _compile(workload: Workload, direction: str, device: torch.device) -> None:
    """Call once."""
    try:
        problem = workload.make(device, direction == "both")
        step(problem, provider("ours").bound(workload.recipe, problem))()
        _release(device)
    except Exception as error:
        print(f"compiling {workload.recipe.title} {workload.text} {direction}: {error}"[:300])


def _release(device: torch.device) -> None:
    """Leave the device's memory to the other processes."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _usable(device: torch.device) -> bool:
    if device.type == "cpu":
        return True
    try:
        torch.zeros(1, device=device).item()
    except RuntimeError:
        return False
    return True


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
