"""``fla-kernels selfcheck``: does what would run here compute the right thing?

JSON: ``ok``, ``device``, ``dtype``, ``policy`` and ``checks``, a list of ``operator``, ``case``
(``dense`` or ``varlen``), ``status`` (``pass``, ``fail``, ``error``, ``refused``), ``planned`` and
``ran`` (implementation with its lowerings), ``gradients`` (whether backward was checked too),
``errors`` (output or gradient to its error in units), ``worst`` (the largest of them), ``bound``,
``seconds`` (first call, compilation included) and ``text`` (why it is no pass).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fla_core.cli import _view

if TYPE_CHECKING:
    from fla_core.cli.calls.check import Check


@_view.command
def selfcheck(
    op: Annotated[str, typer.Option(help="Operators, as a glob: 'retention.*', 'chunk_*'.")] = "*",
    device: Annotated[str, typer.Option(help="Where; the accelerator if there is one.")] = "",
    dtype: Annotated[str, typer.Option(help="Of q, k and v: bf16, fp16, fp32.")] = "bf16",
    backend: Annotated[str | None, typer.Option(help="Policy, as in FLA_BACKEND.")] = None,
    k: Annotated[int, typer.Option("--K", min=1, help="Size of a key and of a value.")] = 64,
    as_json: _view.Json = False,
) -> None:
    """Run each operator forwards and backwards and compare with its definition in float64.

    Small tensors, seconds. The implementation that ran must be the one that was planned. Exit
    code 1 when something is wrong, or when nothing could be checked.
    """
    from fla_core.cli._select import public_matching
    from fla_core.cli.calls.check import check_all
    from fla_core.cli.calls.problem import find_device, find_dtype

    names = public_matching(op)
    where, kind = find_device(device), find_dtype(dtype)
    with _view.stdout_to_stderr(), _view.working("checking") as tell:
        checks = check_all(names, where, kind, backend, k, tell)
    passed = [check for check in checks if check.status == "pass"]
    ok = bool(passed) and all(check.status in ("pass", "refused") for check in checks)
    if as_json:
        _view.emit(
            {
                "ok": ok,
                "device": str(where),
                "dtype": dtype,
                "policy": backend,
                "checks": [check.to_json() for check in checks],
            }
        )
    else:
        _show(checks, f"{where} {dtype}")
    if not ok:
        raise typer.Exit(1)


_HEADERS = ("operator", "case", "result", "error", "worst", "seconds")


def _show(checks: list[Check], where: str) -> None:
    to = _view.console()
    to.print(f"Self-check on {where}", style="bold")
    to.print(
        "error: distance from the float64 definition, 1 being what rounding the inputs does to it",
        style="dim",
    )
    groups: dict[str, list[tuple[str, ...]]] = {}
    for check in checks:
        groups.setdefault(_group(check), []).append(_row(check))
    _view.grouped(to, _HEADERS, groups, least=4)
    for check in checks:
        if check.status != "pass":
            to.print()
            to.print(_view.styled(check.status), f"{check.operator} {check.case}")
            to.print(check.text, markup=False, soft_wrap=True)
    counts = {s: sum(c.status == s for c in checks) for s in ("pass", "fail", "error", "refused")}
    to.print()
    to.print(", ".join(f"{n} {status}" for status, n in counts.items() if n) or "nothing to check")


def _ended(check: Check) -> bool:
    return check.status in ("pass", "fail")


def _group(check: Check) -> str:
    """The implementation that ran, or was to run, and whether only forwards."""
    name = check.ran or check.planned or "no implementation"
    return f"{name}, forward only" if _ended(check) and not check.gradients else name


def _row(check: Check) -> tuple[str, ...]:
    worst = check.worst
    return (
        check.operator,
        check.case,
        check.status,
        f"{check.errors[worst]:.2f} of {check.bound:g}" if worst else "",
        worst,
        f"{check.seconds:.2f}" if _ended(check) else "",
    )
