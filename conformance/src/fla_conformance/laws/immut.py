"""immut: arguments are as they were, bytes and version counters, and nothing returned is one.

So are torch's settings and generators of random numbers: a kernel that draws from them, or seeds
them, changes what a model does next.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.inputs import Inputs
from fla_conformance.laws.law import Law
from fla_conformance.laws.runner import Runner
from fla_core.errors import ImplementationWarning
from fla_core.plugins.torch_state import TorchState

_SEED = 7919
"""One that nobody seeds a generator with by himself."""


def _check(case: Case, runner: Runner) -> str | None:
    inputs = runner.inputs(case.but(seed=case.seed + _SEED))
    before = [(name, t, _bytes(t).clone(), t._version) for name, t in _arguments(inputs)]
    settings, python = TorchState.take(), random.getstate()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImplementationWarning)  # of what is looked for here
        ran = runner.run(inputs)  # seeds the generators first
    assert settings is not None, "torch has been imported"
    if changed := settings.restore():
        return f"settings of torch changed: {', '.join(changed)}"
    after = runner.device.generators()
    runner.device.seed(inputs.case.seed)
    as_seeded = zip(after, runner.device.generators(), strict=True)
    if random.getstate() != python or not all(torch.equal(a, b) for a, b in as_seeded):
        return "random numbers were drawn, or their generator was seeded"
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
