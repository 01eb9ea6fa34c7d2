"""Running the real host code of a declared implementation."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
import triton
from torch import Tensor

from compile_only.cases import STATES, Subject
from compile_only.targets import Target
from fla_conformance.inputs import Inputs
from fla_core.dispatch.validity import check
from fla_core.slots import SKIP, Slots
from fla_triton.plan import DECODE_TOKENS
from fla_triton.profiles import EVERY
from fla_triton.serve import Kernels, kernels_for


def refusal(subject: Subject, chip: Target) -> str:
    """Why the plugin refuses an implementation for a chip under this compiler; ``""`` if not."""
    plugin = import_module(f"fla_backend_{chip.backend}.plugin")
    identity = f"{chip.backend}:{subject.row.contract}#{subject.declaration.variant}"
    directions, versions = ("forward", "backward"), {"triton": triton.__version__}
    rows = tuple(plugin.fla_validity())
    verdict = check(rows, identity, directions, chip.profile.arch, versions)
    return "" if verdict.ok else verdict.subject


def answer(subject: Subject, inputs: Inputs, chip: Target) -> dict[str, Tensor]:
    """Outputs, and gradients of every input in a backward case, with what is known of the chip."""
    call, kernels = inputs.call(), _kernels(subject, chip)
    outputs, residuals = kernels.forward(call, bool(inputs.grads))
    found = dict(zip(inputs.output_names, outputs, strict=True))
    if inputs.grads:
        grads = [inputs.grads[name] for name in inputs.output_names]
        derived = kernels.backward(call, residuals, grads, frozenset(inputs.present))
        found |= {f"d{name}": value for name, value in derived.items()}
    return found


def decode_pooled(subject: Subject, inputs: Inputs, chip: Target) -> None:
    """Run a decoding call with its states in a pool, written or read, in both layouts.

    Nothing happens where the call is no such call. Of one multiprocessor few heads leave nothing
    idle, so that tiles are as wide as those of many heads.
    """
    call, span = inputs.call(), inputs.case.sizes["T"]
    if not subject.row.knows_pools or not call.features >= STATES or span > DECODE_TOKENS:
        return
    host = import_module(f"fla_triton.{subject.row.family}")
    kernels = host.Kernels(replace(chip.profile, multiprocessors=1))
    count, start = call.initial_state.shape[0], call.initial_state
    table = torch.full((count, span + 1), SKIP, dtype=torch.int32)
    accepted = torch.ones(count, dtype=torch.int32)
    for slots in (
        Slots(start.clone(), torch.arange(count), None, True, False),
        Slots(start.mT.contiguous(), torch.arange(count), None, True, True),
        Slots(start.clone(), table, accepted, True, False),
        Slots(start.clone(), table, None, False, False),
    ):
        base = call.but(initial_state=None)
        base.features -= STATES if slots.inplace else {"initial_state"}
        kernels.pooled(base, slots)


def answer_pooled(
    subject: Subject, inputs: Inputs, chip: Target, v_first: bool
) -> dict[str, Tensor]:
    """Outputs of a decoding call whose states lie in a pool; NaN lies in the slots between them."""
    call = inputs.call()
    start = call.initial_state.mT if v_first else call.initial_state
    pool = torch.full((2 * len(start) + 1, *start.shape[1:]), float("nan"))
    indices = torch.arange(1, len(pool), 2).flip(0)
    pool[indices] = start.contiguous()
    base = call.but(initial_state=None)
    base.features -= STATES
    kernels: Any = _kernels(subject, chip)
    (o,) = kernels.pooled(base, Slots(pool, indices, None, True, v_first))
    state = pool[indices]
    return {"o": o, "final_state": state.mT if v_first else state}


def _kernels(subject: Subject, chip: Target) -> Kernels:
    package, profile = f"fla_backend_{chip.backend}", chip.profile
    if subject.kernels is not None:
        return subject.kernels(profile)
    if profile.arch in EVERY:
        return kernels_for(subject.row.family, package, profile.arch)
    made: Kernels = import_module(f"fla_triton.{subject.row.family}").Kernels(profile)
    return made
