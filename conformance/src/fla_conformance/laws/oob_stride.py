"""oob-stride: offsets beyond 2**31 elements, for a few pages of memory.

Two members of a batch lie 2**31 elements apart in a buffer of which only their rows are ever
touched; on a host such memory is committed lazily. An offset that was computed in 32 bits lands
elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.inputs import Inputs
from fla_conformance.laws.compare import disagreement
from fla_conformance.laws.law import Law, NotExecutedError
from fla_conformance.laws.runner import Runner

STRIDE = 2**31


def _check(case: Case, runner: Runner) -> str | None:
    inputs = runner.inputs(case)
    near = runner.run(inputs).named
    far = runner.run(_apart(inputs, runner)).named
    if found := disagreement(far, near, case.dtype):
        return f"with rows {STRIDE} elements apart, {found}"
    return None


def _apart(inputs: Inputs, runner: Runner) -> Inputs:
    """q, k, v and the incoming gradient of o in one buffer, members of the batch far apart."""
    named = {name: inputs.present[name] for name in ("q", "k", "v")}
    if inputs.grads:
        named["o"] = inputs.grads["o"]
    views = dict(zip(named, _spread(list(named.values()), runner), strict=True))
    grads = {**inputs.grads, **{name: views.pop(name) for name in ("o",) if name in views}}
    return replace(inputs.but(**views), grads=grads)


def _spread(tensors: list[Tensor], runner: Runner) -> list[Tensor]:
    rows = [tensor[0].numel() for tensor in tensors]
    first = tensors[0]
    needed = (STRIDE + sum(rows)) * first.element_size()
    free = runner.device.memory()
    if free and free < needed:
        raise NotExecutedError(f"it takes {needed >> 30} GiB of memory, {free >> 30} are free")
    try:
        buffer = torch.empty(STRIDE + sum(rows), dtype=first.dtype, device=first.device)
    except (RuntimeError, MemoryError) as error:
        raise NotExecutedError(f"{needed >> 30} GiB cannot be reserved: {error}") from error
    views, begin = [], 0
    for tensor, row in zip(tensors, rows, strict=True):
        inner = tensor[0].contiguous().stride()
        view = buffer.as_strided(tensor.shape, (STRIDE, *inner), begin)
        view.copy_(tensor)
        views.append(view)
        begin += row
    return views


OOB_STRIDE = Law(
    "oob-stride",
    "offsets beyond 2**31 elements are right",
    _check,
    avoids=frozenset({"varlen", "states"}),
    under="stride",
    speaks_of=lambda case: case.sizes["B"] == 2,
)
