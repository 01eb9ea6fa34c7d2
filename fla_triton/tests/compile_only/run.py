"""Running the real host code of a declared implementation."""

from __future__ import annotations

from importlib import import_module
from importlib.resources import files
from pathlib import Path

from compile_only.cases import Subject
from compile_only.targets import Target
from fla_conformance.case import Case
from fla_conformance.inputs import make_inputs
from fla_triton.tables import load


def run(subject: Subject, case: Case, chip: Target) -> None:
    """Forward of a call, and backward of a backward case, with the chip's profile and table."""
    inputs = make_inputs(case)
    call = inputs.call()
    host = import_module(f"fla_triton.{subject.row.family}")
    table = Path(str(files(f"fla_backend_{chip.backend}") / "tables" / f"{chip.profile.arch}.json"))
    tuned = (load(table),) if table.exists() else ()
    kernels = host.Kernels(chip.profile, *tuned)
    _, residuals = kernels.forward(call, bool(inputs.grads))
    if inputs.grads:
        grads = [inputs.grads[name] for name in inputs.output_names]
        kernels.backward(call, residuals, grads, frozenset(inputs.present))
