"""Checks and times one call on one provider; whatever the provider raises is its row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fla_core.cli.calls.bench import anchor, fresh, gate, timers
from fla_core.cli.calls.bench.anchor import Anchor
from fla_core.cli.calls.bench.golds import Golds
from fla_core.cli.calls.bench.providers import Absent, NotOffered, Provider
from fla_core.cli.calls.bench.rows import Row
from fla_core.cli.calls.bench.workload import Workload
from fla_core.cli.calls.check import witness
from fla_core.cli.calls.problem import Problem
from fla_core.domain import SHORT_DTYPES
from fla_core.errors import NoImplementationError, PluginLoadError, PolicyError
from fla_core.prepare import device_guard


@dataclass(frozen=True, slots=True)
class Bench:
    """What all calls of a run share.

    Attributes:
        device: where.
        budget: seconds for the runs of one figure.
        first: whether first calls of fresh processes are timed too.
        golds: definitions evaluated so far.
    """

    device: torch.device
    budget: float = 0.1
    first: bool = False
    golds: Golds = field(default_factory=Golds)

    def run(self, workload: Workload, provider: Provider | Anchor | Absent, direction: str) -> Row:
        """Check a call and, if it is right, time it."""
        row = blank(workload, provider.name, provider.version, direction)
        if isinstance(provider, Absent):
            row.status, row.text = provider.status, provider.text
            return row
        try:
            with device_guard(self.device):  # peers and captured graphs launch where that is
                self._fill(row, workload, provider)
            return row
        except PolicyError:
            raise
        except NotOffered as error:
            told = "missing", str(error)
        except (NoImplementationError, PluginLoadError, NotImplementedError) as error:
            told = "refused", str(error)
        except Exception as error:
            told = "error", f"{type(error).__name__}: {error}"
        # Figures that were taken before it failed are those of no call.
        row = blank(workload, provider.name, provider.version, direction)
        row.status, row.text = told
        return row

    def _fill(self, row: Row, workload: Workload, provider: Provider | Anchor) -> None:
        problem = workload.make(self.device, row.direction == "both")
        function = provider.function(workload.recipe, problem)
        plans: dict[str, None] = {}
        with witness() as events:

            def watched(problem: Problem) -> dict[str, Tensor]:
                events()  # what the definition has called since is not the provider's
                answers = function(problem)
                plans.update(dict.fromkeys(e["plan"] for e in events() if e["event"] == "call"))
                return answers

            lengths = gate.LENGTHS if provider.ours else gate.FULL_LENGTHS
            verdict = gate.check(
                workload, problem, watched, self.golds, provider.definitions, lengths
            )
        row.errors, row.bound = verdict.errors, verdict.bound
        row.implementation = ", ".join(plans) if provider.ours else provider.shown(workload.recipe)
        several = len({plan.partition(" ")[0] for plan in plans}) > 1
        if several or not verdict.green:
            row.status = "wrong"
            row.text = verdict.failure or f"several implementations ran: {row.implementation}"
            return
        self._time(row, provider, workload, problem)
        row.status = "ok"

    def _time(
        self, row: Row, provider: Provider | Anchor, workload: Workload, problem: Problem
    ) -> None:
        call = step(problem, provider.bound(workload.recipe, problem))
        device = self.device
        row.ms = timers.milliseconds(call, device, self.budget)
        row.host_us = timers.host_microseconds(call, device)
        row.peak_mib = timers.peak_mib(call, device)
        if not problem.trained:
            row.graph_ms = timers.graph_milliseconds(call, device)
        if self.first:
            row.first_s = fresh.first_call(workload, provider, row.direction, device)


def blank(workload: Workload, provider: str, version: str, direction: str) -> Row:
    """A row without figures."""
    recipe = workload.recipe
    named = (recipe.operator, "" if direction == "decode" else recipe.variant)
    return Row(
        *((anchor.NAME, "") if recipe is anchor.RECIPE else named),
        provider,
        version,
        dict(workload.sizes),
        workload.lengths,
        SHORT_DTYPES[str(workload.dtype).removeprefix("torch.")],
        direction,
    )


def step(problem: Problem, call: Callable[[], object]) -> Callable[[], object]:
    """The call alone, or with the gradients of everything trained under one for its output."""
    if not problem.trained:
        return torch.no_grad()(call)
    leaves = [problem.present[name] for name in sorted(problem.trained)]
    do = torch.randn_like(first_tensor(call()))

    def both() -> object:
        return torch.autograd.grad(first_tensor(call()), leaves, do, allow_unused=True)

    return both


def first_tensor(result: object) -> Tensor:
    """The output among what a public operator returns."""
    return result if isinstance(result, Tensor) else result[0]  # type: ignore[index]
