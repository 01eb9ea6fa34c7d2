"""Definitions that are at hand: evaluated once for all that share a call, or by other processes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from fla_core.cli.calls import measure
from fla_core.cli.calls.bench.workload import Workload
from fla_core.cli.calls.problem import CPU, Problem


class Golds:
    """Definitions that were evaluated before: providers and directions of one call share them.

    Args:
        folder: where processes that evaluate ahead leave what others compare with; None for none.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._known: dict[tuple[str, bool], measure.Gold] = {}

    def small(
        self, workload: Workload, problem: Problem, definition: measure.Evaluate
    ) -> measure.Gold:
        """Answers to a small call."""
        return self._of(labelled("small", workload), problem, definition, CPU)

    def slice(
        self, workload: Workload, problem: Problem, definition: measure.Evaluate
    ) -> measure.Gold:
        """Answers to a slice of a timed call, on the device where that computes in float64."""
        return self._of(labelled("slice", workload), problem, definition, problem.device)

    def leave(self, label: str, problem: Problem, definition: measure.Evaluate) -> None:
        """Evaluate on the CPU and leave it in the folder, under a label of :func:`labelled`."""
        path = self._path(label, bool(problem.trained))
        assert path is not None
        being_written = path.with_suffix(f".{os.getpid()}")
        gold = measure.gold(problem, definition)
        told = {"values": gold.values, "units": gold.units, "cotangents": gold.cotangents}
        torch.save(told, being_written)
        being_written.replace(path)

    def _of(
        self, label: str, problem: Problem, evaluate: measure.Evaluate, device: torch.device
    ) -> measure.Gold:
        trained = bool(problem.trained)
        # What is known with gradients is known without them.
        for key in dict.fromkeys(((label, True), (label, trained))):
            found = self._known.get(key) or self._left(*key, device)
            if found is not None:
                self._known[key] = found
                return found
        found = self._known[label, trained] = measure.gold(problem, evaluate, device)
        return found

    def _left(self, label: str, trained: bool, device: torch.device) -> measure.Gold | None:
        path = self._path(label, trained)
        if path is None or not path.exists():
            return None
        return measure.Gold(**torch.load(path, map_location=device, weights_only=True))

    def _path(self, label: str, trained: bool) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{label}{'-trained' if trained else ''}.pt"


def labelled(part: str, workload: Workload) -> str:
    """The label of the answers to a part of a workload."""
    told = f"{part} {workload.recipe.title} {workload.text} {workload.dtype}"
    return re.sub(r"[^A-Za-z0-9_]+", "-", told)
