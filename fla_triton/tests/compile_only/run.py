"""Running the real host code of a declared implementation."""

from __future__ import annotations

from importlib import import_module

from torch import Tensor

from compile_only.cases import Subject
from compile_only.targets import Target
from fla_conformance.inputs import Inputs
from fla_triton.profiles import EVERY
from fla_triton.serve import kernels_for


def answer(subject: Subject, inputs: Inputs, chip: Target) -> dict[str, Tensor]:
    """Outputs, and gradients of every input in a backward case, with what is known of the chip."""
    call = inputs.call()
    package, profile = f"fla_backend_{chip.backend}", chip.profile
    if profile.arch in EVERY:
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
