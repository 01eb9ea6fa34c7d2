"""Shapes and dtypes of what a call returns, derived from its contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fla_core.call import Call
from fla_core.contract import Contract, TensorSpec
from fla_core.dtypes import wide

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """Name, shape and dtype of each output the implementation returns, in order; their device."""

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...]
    device: torch.device


def expected_outputs(call: Call) -> Expected:
    """Derive output shapes and dtypes of a call from its contract and its tensors."""
    return outputs_of(call.contract, call.features, axis_sizes(call), call.q)


def outputs_of(
    contract: Contract, features: frozenset[str], sizes: Mapping[str, int], q: Tensor
) -> Expected:
    """Derive output shapes and dtypes from axis sizes, features and the dtype of q."""
    specs = contract.outputs_for(features)
    return Expected(
        tuple(spec.name for spec in specs),
        tuple(_shape(spec, sizes, features) for spec in specs),
        tuple(wide(q) if spec.dtype == "state" else q.dtype for spec in specs),
        q.device,
    )


def axis_sizes(call: Call) -> dict[str, int]:
    """Sizes of the axes by letter; NT is the number of chunks."""
    q, v = call.q, call.v
    sizes = {
        "B": q.shape[0],
        "T": q.shape[1],
        "H": q.shape[2],
        "HV": v.shape[2],
        "K": q.shape[3],
        "V": v.shape[3],
        "N": call.num_sequences,
    }
    if "states" in call.features:
        size = call.hints.chunk_size or 64
        bounds = call.bounds or (0, q.shape[1])
        sizes["NT"] = sum(-(-(end - begin) // size) for begin, end in pairwise(bounds))
    return sizes


def _shape(spec: TensorSpec, sizes: Mapping[str, int], features: frozenset[str]) -> Shape:
    letters = spec.axes
    if "state_v_first" in features and letters[-2:] == ("K", "V"):
        letters = (*letters[:-2], "V", "K")
    return tuple(1 if letter == "1" else sizes[letter] for letter in letters)
