"""prefix: no token sees a later one (an earlier one, when time runs backwards)."""

from __future__ import annotations

import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.inputs import Inputs
from fla_conformance.laws.compare import disagreement
from fla_conformance.laws.cut import axis_of, mapped, with_grads
from fla_conformance.laws.law import Law
from fla_conformance.laws.runner import Ran, Runner


def _check(case: Case, runner: Runner) -> str | None:
    tokens = case.sizes["T"]
    backwards = "reverse" in case.features
    inputs = runner.inputs(case)
    edits = runner.inputs(case.but(seed=case.seed + 1))
    for cut in sorted({1, tokens // 2, tokens - 1} & set(range(1, tokens))):
        kept = slice(cut, None) if backwards else slice(None, cut)
        first = _only_from(inputs, kept)
        edited = _edited(first, edits, kept)
        before, after = runner.run(first), runner.run(edited)
        found = disagreement(
            _part(after, inputs, kept), _part(before, inputs, kept), case.dtype, runner.exact
        )
        if found:
            place = "before" if backwards else "from"
            return f"after the tokens {place} {cut} on were changed, {found}"
        if found := _leaks(before, inputs, kept):
            return found
    return None


def _only_from(inputs: Inputs, kept: slice) -> Inputs:
    """Let gradients come in through the outputs of the kept tokens alone."""
    if not inputs.grads:
        return inputs
    grads = {name: torch.zeros_like(grad) for name, grad in inputs.grads.items()}
    grads["o"][:, kept] = inputs.grads["o"][:, kept]
    return with_grads(inputs, **grads)


def _edited(inputs: Inputs, edits: Inputs, kept: slice) -> Inputs:
    def edit(name: str, tensor: Tensor | None) -> Tensor | None:
        if tensor is None or name not in inputs.tensors or axis_of(inputs, name, "T") is None:
            return tensor
        other = edits.tensors[name]
        assert other is not None
        changed = other.clone()
        changed[:, kept] = tensor[:, kept]
        return changed

    return mapped(inputs, edit)


def _part(ran: Ran, inputs: Inputs, kept: slice) -> dict[str, Tensor]:
    """Whatever can depend on the kept tokens only: not the states, which are those at the end."""
    found = {"o": ran.outputs["o"][:, kept]}
    for name, grad in ran.gradients.items():
        timed = axis_of(inputs, name, "T") is not None
        found[f"d{name}"] = grad[:, kept] if timed else grad
    return found


def _leaks(ran: Ran, inputs: Inputs, kept: slice) -> str:
    """Tokens that no output with a gradient can see have none themselves."""
    tokens = inputs.case.sizes["T"]
    other = slice(None, kept.start) if kept.stop is None else slice(kept.stop, tokens)
    for name, grad in ran.gradients.items():
        if axis_of(inputs, name, "T") is not None and bool((grad[:, other] != 0).any()):
            return f"d{name} is not zero at tokens that no differentiated output can see"
    return ""


PREFIX = Law(
    "prefix",
    "outputs and gradients of a prefix do not depend on what comes after it",
    _check,
    avoids=frozenset({"states"}),
)
