"""split: one pass equals two with the state carried over, and a prefill followed by steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.inputs import Inputs
from fla_conformance.laws.compare import disagreement
from fla_conformance.laws.cut import axis_of, window, with_grads, with_tensors
from fla_conformance.laws.law import Law, NotExecutedError
from fla_conformance.laws.runner import Ran, Runner

_STATES = {"initial_state": "final_state", "initial_z": "final_z"}
"""What a call starts from, and the output of the call before it that this is."""


def _check(case: Case, runner: Runner) -> str | None:
    inputs = runner.inputs(case)
    if not _STATES.keys() & inputs.present.keys() <= set(inputs.wanted):
        inputs = _without_gradients(inputs)  # there is no gradient to carry back
    whole = runner.run(inputs).named
    ways = [cuts for cuts in _ways(case.sizes["T"]) if _allowed(case, cuts, runner)]
    ways = ways or [cuts for cuts in _in_two(case.sizes["T"]) if _allowed(case, cuts, runner)][:1]
    if not ways:
        raise NotExecutedError("no part of the sequence has a length that is declared")
    for cuts in ways:
        parts = _forward(inputs, cuts, runner)
        joined = _joined(inputs, parts, runner)
        if found := disagreement(joined, whole, case.dtype):
            return f"split at {', '.join(map(str, cuts[1:-1]))}, {found}"
    return None


def _ways(tokens: int) -> list[tuple[int, ...]]:
    """Where to cut: after the first token, in the middle, and into a prefill and single steps."""
    middle = tokens // 2
    ways = [(0, 1, tokens), (0, middle, tokens), (0, tokens - 2, tokens - 1, tokens)]
    return [cuts for cuts in ways if all(a < b for a, b in pairwise(cuts))]


def _in_two(tokens: int) -> list[tuple[int, ...]]:
    return [(0, middle, tokens) for middle in range(1, tokens)]


def _allowed(case: Case, cuts: tuple[int, ...], runner: Runner) -> bool:
    parts = {end - begin for begin, end in pairwise(cuts)}
    return all(runner.takes(case.but(sizes={**case.sizes, "T": length})) for length in parts)


def _forward(
    inputs: Inputs, cuts: Sequence[int], runner: Runner
) -> list[tuple[Inputs, dict[str, Tensor]]]:
    """Run the parts one after the other, each from the state the one before left."""
    parts: list[tuple[Inputs, dict[str, Tensor]]] = []
    for begin, end in pairwise(cuts):
        part = window(inputs, begin, end)
        if parts:
            left = parts[-1][1]
            part = with_tensors(part, **{a: left[b] for a, b in _STATES.items() if b in left})
        outputs = runner.run(_without_gradients(part)).outputs
        parts.append((part, dict(outputs)))
    return parts


def _without_gradients(inputs: Inputs) -> Inputs:
    return replace(inputs, case=inputs.case.but(direction="fwd", gradients=None), grads={})


def _joined(
    inputs: Inputs, parts: Sequence[tuple[Inputs, dict[str, Tensor]]], runner: Runner
) -> dict[str, Tensor]:
    """Results of the whole call, put together from those of its parts."""
    joined = dict(parts[-1][1])
    joined["o"] = torch.cat([outputs["o"] for _, outputs in parts], dim=1)
    if not inputs.grads:
        return joined
    gradients: list[Ran] = []
    for part, _ in reversed(parts):
        if gradients:
            later = gradients[0].gradients
            part = with_grads(part, **{b: later[a] for a, b in _STATES.items() if a in later})
        gradients.insert(0, runner.run(part))
    for name in inputs.wanted:
        each = [ran.gradients[name] for ran in gradients]
        if name in _STATES:
            joined[f"d{name}"] = each[0]
        elif axis_of(inputs, name, "T") is not None:
            joined[f"d{name}"] = torch.cat(each, dim=1)
        else:  # a parameter that all tokens share
            joined[f"d{name}"] = torch.stack(each).sum(0)
    return joined


SPLIT = Law(
    "split",
    "one pass equals several with the state carried over",
    _check,
    needs=frozenset({"initial_state", "final_state"}),
    avoids=frozenset({"varlen", "reverse", "states", "narrow_state"}),
    long=True,
)
