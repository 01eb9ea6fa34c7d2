"""Parts of a call: some of its tokens, one of its sequences, one member of its batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fla_conformance.inputs import Inputs
from fla_core.contract import TensorSpec

if TYPE_CHECKING:
    from fla_conformance.laws.runner import Ran


def axis_of(inputs: Inputs, name: str, letter: str) -> int | None:
    """Position of an axis in an argument or output, None if it has none of that letter."""
    contract = inputs.case.definition
    spec = next(s for s in (*contract.inputs, *contract.outputs) if s.name == name)
    axes = _axes(spec, inputs)
    return axes.index(letter) if letter in axes else None


def _axes(spec: TensorSpec, inputs: Inputs) -> tuple[str, ...]:
    taken = spec.alternative and f"{spec.name}_v" in inputs.features
    return tuple(spec.alternative.split()) if taken else spec.axes


def narrowed(inputs: Inputs, letter: str, begin: int, end: int) -> Inputs:
    """Positions ``begin..end`` of an axis, in arguments and incoming gradients alike."""

    def part(name: str, tensor: Tensor | None) -> Tensor | None:
        axis = axis_of(inputs, name, letter)
        if tensor is None or axis is None:
            return tensor
        # A copy: a view of part of a tensor would test strides, which is another law's subject.
        return tensor.narrow(axis, begin, end - begin).clone(memory_format=torch.contiguous_format)

    return mapped(inputs, part)


def mapped(inputs: Inputs, function: Callable[[str, Tensor | None], Tensor | None]) -> Inputs:
    """Apply ``function(name, tensor)`` to each argument and incoming gradient."""
    tensors = {name: function(name, tensor) for name, tensor in inputs.tensors.items()}
    grads = {}
    for name, tensor in inputs.grads.items():
        changed = function(name, tensor)
        assert changed is not None
        grads[name] = changed
    return replace(inputs, tensors=tensors, grads=grads)


def window(inputs: Inputs, begin: int, end: int) -> Inputs:
    """Tokens ``begin..end`` of a dense call."""
    return narrowed(inputs, "T", begin, end)


def member(inputs: Inputs, index: int) -> Inputs:
    """One member of a dense batch."""
    return narrowed(narrowed(inputs, "B", index, index + 1), "N", index, index + 1)


def sequence(inputs: Inputs, index: int) -> Inputs:
    """One sequence of a packed call, as a dense call with a batch of one."""
    lengths = inputs.case.lengths
    assert lengths is not None
    begin = sum(lengths[:index])
    alone = narrowed(window(inputs, begin, begin + lengths[index]), "N", index, index + 1)
    features = alone.features - {"varlen"}
    return replace(alone, features=features, cu_seqlens=None, cu_seqlens_cpu=None)


def together(inputs: Inputs, alone: Sequence[Ran]) -> dict[str, Tensor]:
    """Results of a packed call, put together from those of its sequences."""
    found = {}
    for name in alone[0].outputs:
        axis = 1 if axis_of(inputs, name, "T") is not None else 0
        found[name] = torch.cat([ran.outputs[name] for ran in alone], dim=axis)
    for name in alone[0].gradients:
        each = [ran.gradients[name] for ran in alone]
        if axis_of(inputs, name, "T") is not None:
            found[f"d{name}"] = torch.cat(each, dim=1)
        elif axis_of(inputs, name, "N") is not None:
            found[f"d{name}"] = torch.cat(each, dim=0)
        else:  # a parameter that all sequences share
            found[f"d{name}"] = torch.stack(each).sum(0)
    return found


def with_tensors(inputs: Inputs, **tensors: Tensor | None) -> Inputs:
    """A copy with some tensors replaced; a feature that is a tensor's presence follows it."""
    contract = inputs.case.definition
    features = set(inputs.features)
    for name, tensor in tensors.items():
        if contract.input(name).optional:
            features.discard(name)
            features.update({name} if tensor is not None else ())
    return replace(inputs.but(**tensors), features=frozenset(features))


def with_grads(inputs: Inputs, **grads: Tensor) -> Inputs:
    """A copy with some incoming gradients replaced."""
    return replace(inputs, grads={**inputs.grads, **grads})
