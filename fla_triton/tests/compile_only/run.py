"""Running the real host code of a declared implementation."""

from __future__ import annotations

from importlib import import_module

import triton
from torch import Tensor

from compile_only.cases import Subject
from compile_only.targets import Target
from fla_conformance.inputs import Inputs
from fla_core.dispatch.validity import check
from fla_triton.profiles import EVERY
from fla_triton.serve import kernels_for


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
    call = inputs.call()
    package, profile = f"fla_backend_{chip.backend}", chip.profile
    if subject.kernels is not None:
        kernels = subject.kernels(profile)
    elif profile.arch in EVERY:
        kernels = kernels_for(subject.row.family, package, profile.arch)
    else:
        kernels = import_module(f"fla_triton.{subject.row.family}").Kernels(profile)
    outputs, residuals = kernels.forward(call, bool(inputs.grads))
    found = dict(zip(inputs.output_names, outputs, strict=True))
    if inputs.grads:
        grads = [inputs.grads[name] for name in inputs.output_names]
        derived = kernels.backward(call, residuals, grads, frozenset(inputs.present))
        found |= {f"d{name}": value for name, value in derived.items()}
    return found
