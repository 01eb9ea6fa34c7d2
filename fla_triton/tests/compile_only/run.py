"""Running the real host code of a declared implementation."""

from __future__ import annotations

from importlib import import_module
from importlib.resources import files
from pathlib import Path

from torch import Tensor

from compile_only.cases import Subject
from compile_only.targets import Target
from fla_conformance.inputs import Inputs
from fla_triton.tables import load


def answer(subject: Subject, inputs: Inputs, chip: Target) -> dict[str, Tensor]:
    """Outputs, and gradients of every input in a backward case, with what is known of the chip."""
    call = inputs.call()
    host = import_module(f"fla_triton.{subject.row.family}")
    table = Path(str(files(f"fla_backend_{chip.backend}") / "tables" / f"{chip.profile.arch}.json"))
    tuned = (load(table, subject.row.family, FAMILIES[subject.row.family].tiles),) if table.exists() else ()
    kernels = host.Kernels(chip.profile, *tuned)
    outputs, residuals = kernels.forward(call, bool(inputs.grads))
    found = dict(zip(inputs.output_names, outputs, strict=True))
    if inputs.grads:
        grads = [inputs.grads[name] for name in inputs.output_names]
        derived = kernels.backward(call, residuals, grads, frozenset(inputs.present))
        found |= {f"d{name}": value for name, value in derived.items()}
    return found
