"""One process's share of the compiling and checking; see ``check_and_time.py``.

    python grid_share.py JSON

Compiles what the timed calls need by calling each once, then runs every ``of``-th case of the
conformance grid. Results are appended to a file as JSON lines. A case that leaves the device
unusable ends the process, which starts again behind it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from calls import chosen, narrowed, steps, workloads

from fla_conformance.case import Case
from fla_conformance.grid import grid
from fla_conformance.result import Outcome
from fla_conformance.run import Target, run_case
from fla_core.cli.calls.bench.providers import provider
from fla_core.cli.calls.bench.runner import step
from fla_core.cli.calls.bench.workload import Workload
from fla_core.contracts import CONTRACTS

LEVELS = ("L1", "L2")


def main(asked: Mapping[str, Any]) -> None:
    """Do a share and append what was found."""
    torch.set_num_threads(1)
    with narrowed(asked["plugin"], asked["variant"]):
        _share(asked)


def _share(asked: Mapping[str, Any]) -> None:
    found = chosen(asked["plugin"], asked["device"], asked["ops"])
    mine = slice(asked["worker"], None, asked["of"])
    if asked["start"] == 0:
        device = torch.device(asked["device"])
        for workload, direction in _timed(found, asked["shapes"], asked["decode"])[mine]:
            _compile(workload, direction, device)
    todo = _cases(found, asked["budget"])[mine]
    for index in range(asked["start"], len(todo)):
        target, case, level = todo[index]
        result = run_case(case, target, level)
        usable = result.outcome is not Outcome.CRASH or _usable(asked["device"])
        margin = result.margin
        line = {
            "contract": target.declaration.contract,
            "id": result.id,
            "outcome": result.outcome.value,
            "detail": result.detail[:300],
            "margin": 0.0 if margin is None else max(margin.block, margin.token),
            "seconds": round(result.seconds, 2),
        }
        with Path(asked["file"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if not usable:
            again = json.dumps({**asked, "start": index + 1})
            os.execv(sys.executable, [sys.executable, __file__, again])


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


def _timed(found: list[Target], shapes: list[str], decode: bool) -> list[tuple[Workload, str]]:
    contracts = dict.fromkeys(target.declaration.contract for target in found)
    listed = [
        (workload, direction)
        for contract in contracts
        for workload in workloads(contract, shapes, torch.bfloat16)
        for direction in ("both", "fwd")
    ]
    if decode:
        listed += [(w, "decode") for c in contracts for w in steps(c, torch.bfloat16)]
    return listed


def _compile(workload: Workload, direction: str, device: torch.device) -> None:
    """Call once; what fails here fails again, and is told, when it is timed."""
    try:
        problem = workload.make(device, direction == "both")
        step(problem, provider("ours").bound(workload.recipe, problem))()
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    except Exception as error:
        print(f"compiling {workload.recipe.title} {workload.text} {direction}: {error}"[:300])  # noqa: T201


def _usable(device: str) -> bool:
    if torch.device(device).type == "cpu":
        return True
    try:
        torch.zeros(1, device=device).item()
    except RuntimeError:
        return False
    return True


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
