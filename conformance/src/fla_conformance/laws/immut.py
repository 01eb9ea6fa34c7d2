"""immut: arguments are as they were, bytes and version counters, and nothing returned is one."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.inputs import Inputs
from fla_conformance.laws.law import Law
from fla_conformance.laws.runner import Runner


def _check(case: Case, runner: Runner) -> str | None:
    inputs = runner.inputs(case)
    before = [(name, t, _bytes(t).clone(), t._version) for name, t in _arguments(inputs)]
    ran = runner.run(inputs)
    for name, tensor, old, version in before:
        if not torch.equal(_bytes(tensor), old):
            return f"the bytes of {name} changed"
        if tensor._version != version:
            return f"{name} was written to, if with the same bytes"
    owners = {tensor.untyped_storage().data_ptr(): name for name, tensor, _, _ in before}
    for name, tensor in ran.named.items():
        owner = owners.get(tensor.untyped_storage().data_ptr())
        if tensor.numel() and owner is not None:
            return f"{name} shares memory with {owner}"
    return None


def _arguments(inputs: Inputs) -> Iterator[tuple[str, Tensor]]:
    yield from inputs.present.items()
    for name, grad in inputs.grads.items():
        yield f"the gradient of {name}", grad
    if inputs.cu_seqlens is not None:
        yield "cu_seqlens", inputs.cu_seqlens


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).contiguous().view(torch.uint8)


IMMUT = Law("immut", "arguments are left as they are and are not returned", _check)
