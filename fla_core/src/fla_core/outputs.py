"""Shapes and dtypes of what a call returns, derived from its contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch

from fla_core.call import Call
from fla_core.contract import TensorSpec
from fla_core.dtypes import wide

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """Shape and dtype of each output the implementation returns, in order."""

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...]


def expected_outputs(call: Call, features: frozenset[str] | None = None) -> Expected:
    """Derive output shapes and dtypes of a call from its contract and its tensors."""
    specs = call.contract.outputs_for(call.features if features is None else features)
    sizes = axis_sizes(call)
    return Expected(
        tuple(spec.name for spec in specs),
        tuple(_output_shape(spec, sizes, call.features) for spec in specs),
        tuple(_output_dtype(spec, call) for spec in specs),
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
        "1": 1,
    }
    if "states" in call.features:
        size = call.hints.chunk_size or 64
        bounds = call.bounds or (0, q.shape[1])
        sizes["NT"] = sum(-(-(end - begin) // size) for begin, end in pairwise(bounds))
    return sizes


def _output_shape(spec: TensorSpec, sizes: Mapping[str, int], features: frozenset[str]) -> Shape:
    letters = spec.axes
    if "state_v_first" in features and letters[-2:] == ("K", "V"):
        letters = (*letters[:-2], "V", "K")
    return tuple(sizes[letter] for letter in letters)


def _output_dtype(spec: TensorSpec, call: Call) -> torch.dtype:
    dtype: torch.dtype = call.q.dtype
    return wide(call.q) if spec.dtype == "state" else dtype
