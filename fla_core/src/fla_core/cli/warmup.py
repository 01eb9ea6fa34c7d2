"""``fla-kernels warmup``: compile what a call needs before the call is made.

JSON: ``operator``, ``device``, ``dtype``, ``gradients`` and ``calls``, a list of ``shape`` (axis to
size), ``plan``, ``first_seconds`` and ``second_seconds``.
"""

from __future__ import annotations

from typing import Annotated

import typer

from fla_core.cli import _view


@_view.command
def warmup(
    operator: Annotated[str, typer.Argument(help="kda, chunk_kda or kda.chunk_kda.")],
    shape: Annotated[list[str], typer.Option(help="B,T,H,K,V or B,T,H,HV,K,V; repeats.")],
    dtype: Annotated[str, typer.Option(help="Of q, k and v: bf16, fp16, fp32.")] = "bf16",
    device: Annotated[str, typer.Option(help="Where; the accelerator if there is one.")] = "",
    grad: Annotated[bool, typer.Option("--grad", help="Backward too.")] = False,
    feature: Annotated[list[str] | None, typer.Option(help="l2norm, varlen, ...; repeats.")] = None,
    backend: Annotated[str | None, typer.Option(help="Policy, as in FLA_BACKEND.")] = None,
    as_json: _view.Json = False,
) -> None:
    """Run an operator twice on random tensors of each shape, so that compilation is done.

    What a toolchain compiles it keeps in its own cache on disk, where the next process finds it.
    """
    from fla_core.cli._select import public_name
    from fla_core.cli.calls.problem import find_device, find_dtype
    from fla_core.cli.calls.warm import parse_shape, warm

    name = public_name(operator)
    where, kind = find_device(device), find_dtype(dtype)
    sizes = [parse_shape(name, text) for text in shape]
    with _view.stdout_to_stderr(), _view.working("compiling"):
        calls = [warm(name, each, where, kind, feature or (), grad, backend) for each in sizes]
    if as_json:
        facts = {"operator": name, "device": str(where), "dtype": dtype, "gradients": grad}
        _view.emit({**facts, "calls": [call.to_json() for call in calls]})
        return
    to = _view.console()
    to.print(f"{name} on {where} {dtype}{', with gradients' if grad else ''}", style="bold")
    rows = [(call.text, call.plan, f"{call.first:.4f} s", f"{call.second:.4f} s") for call in calls]
    _view.table(to, ("shape", "implementation", "first call", "second call"), rows)
