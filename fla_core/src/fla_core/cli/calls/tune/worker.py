"""The child process of ``tune``: tries one candidate after another, and may crash.

``python -m fla_core.cli.calls.tune.worker PLUGIN DEVICE BUDGET`` reads a JSON line for each job
(``id``, ``task``, ``tiles``, ``mode``) and answers ``{"begin": id}``, then ``{"id", "ms",
"failure"}``. ``mode`` is ``check`` (compile, run, compare small calls), ``time``, or ``whole``
(compare the timed call too, then time it). A candidate that leaves the device unusable ends the
process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fla_core.cli._inspect import channel
from fla_core.cli.calls.bench import gate, recipes, timers
from fla_core.cli.calls.bench.golds import Golds
from fla_core.cli.calls.bench.providers import OURS, provider
from fla_core.cli.calls.bench.runner import step
from fla_core.cli.calls.bench.workload import Workload
from fla_core.cli.calls.tune.find import find_tuner
from fla_core.dispatch.runtime import sandbox
from fla_core.plugins.discover import in_memory
from fla_core.plugins.tuning import Task, Tiles, Tuner

TUNED = "tuned"
"""Name of the plugin that serves with a candidate's tiles."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Tries candidates on a device."""

    tuner: Tuner
    device: torch.device
    budget: float
    golds: Golds = field(default_factory=Golds)

    def run(self, task: Task, tiles: Tiles, mode: str) -> tuple[float | None, str]:
        """Milliseconds, or None, and what is wrong, or ``""``."""
        (recipe,) = recipes.find(task.operator, "")
        workload = Workload(recipe, task.sizes, None, getattr(torch, task.dtype))
        problem = workload.make(self.device, task.direction == "backward")
        with sandbox(in_memory(TUNED, self.tuner.serving(task, tiles))):
            ours = provider(OURS, TUNED)
            function = ours.function(recipe, problem)
            call = step(problem, ours.bound(recipe, problem))
            if mode == "time":
                return timers.milliseconds(call, self.device, self.budget), ""
            call()
            checks = gate.check if mode == "whole" else gate.small
            if failure := checks(workload, problem, function, self.golds).failure:
                return None, failure
            if mode == "whole":
                return timers.milliseconds(call, self.device, self.budget), ""
            return None, ""


def main(plugin: str, device: str, budget: float) -> None:
    """Answer jobs until there are no more."""
    say = channel()
    where = torch.device(device)
    if where.type != "cpu":
        torch.set_num_threads(1)  # there is a worker for each core
        torch.get_device_module(where.type).set_device(where)
    trial = Trial(find_tuner(plugin, where), where, budget)
    for line in sys.stdin:
        job = json.loads(line)
        say({"begin": job["id"]})
        say({"id": job["id"], **_answer(trial, job)})
        if not _usable(where):
            sys.exit(3)
        _release(where)


def _answer(trial: Trial, job: Mapping[str, Any]) -> dict[str, Any]:
    try:
        ms, failure = trial.run(Task(**job["task"]), job["tiles"], job["mode"])
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        return {"ms": None, "failure": f"{type(error).__name__}: {first}"}
    return {"ms": ms, "failure": failure}


def _release(device: torch.device) -> None:
    """Give unused memory back: there are many workers on one device."""
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


def _usable(device: torch.device) -> bool:
    try:
        torch.zeros(1, device=device).item()
    except RuntimeError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
