"""``fla-conformance ladder PLUGIN``: how far up, and what stands in the way of the next level."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from fla_conformance.cli import options, view
from fla_conformance.cli.outputs import Outputs
from fla_conformance.levels import LEVELS, MEANING

if TYPE_CHECKING:
    from rich.console import Console

    from fla_conformance.levels import Standing
    from fla_conformance.report import Report
    from fla_conformance.result import Result


@view.command
def ladder(
    plugin: options.Plugin,
    op: options.Op = "*",
    device: options.Device = "",
    level: options.Level = "L4",
    budget: options.Budget = "ci",
    seed: options.Seed = 0,
    isolate: options.Isolate = False,
    timeout: options.Timeout = 300.0,
    json: options.JsonFile = None,
    html: options.HtmlFile = None,
) -> None:
    """Climb level by level, each implementation until its first failure, and name the next step.

    For bringing up new hardware: nothing is run above the level that fails. Exit code 1 unless
    every implementation reaches the level asked for.
    """
    from fla_conformance.session import Request, prepare
    from fla_conformance.session import run as carry_out

    request = Request(
        plugin,
        op,
        device,
        level,
        options.budget(budget),
        seed,
        isolated=isolate,
        timeout=timeout,
        climb=True,
        argv=("fla-conformance", *sys.argv[1:]),
    )
    outputs = Outputs(json, html)
    outputs.check()
    prepared = prepare(request)
    with view.progress(len(prepared.tasks) + len(prepared.early)) as tell:
        report = carry_out(prepared, tell=tell)
    to = view.console()
    for rung in reversed(LEVELS[: LEVELS.index(level) + 1]):
        to.print(f"[bold]{rung}[/]  [dim]{MEANING[rung]}[/]")
    to.print()
    for standing in report.standings:
        _show(to, report, standing, level)
    _show_plugin(to, report)
    view.written(to, outputs.write(report))
    reached = bool(report.standings) and all(s.level >= level for s in report.standings)
    if not reached:
        raise typer.Exit(1)


def _show(to: Console, report: Report, standing: Standing, goal: str) -> None:
    from fla_conformance.report.pages import reproduce
    from fla_core.domain import SHORT_DTYPES

    dtype = SHORT_DTYPES.get(standing.dtype, standing.dtype)
    rungs = "".join("■" if rung <= standing.level else "□" for rung in LEVELS)
    to.print(f"{rungs} {standing.level or '--'}  {standing.implementation} {dtype}", markup=False)
    if standing.level >= goal:
        return
    step = LEVELS[LEVELS.index(standing.level) + 1] if standing.level else LEVELS[0]
    row = first_failure(report, standing, step)
    if row is not None:
        failed, checked = standing.failed(step), sum(standing.counts[step].values())
        said = f"{failed} of {checked} failed, first {row.outcome.value} {row.id}"
        to.print(f"      {step}: {said}", markup=False, soft_wrap=True)
        to.print(f"      {row.detail.partition(chr(10))[0]}", style="dim", markup=False)
        to.print(f"      {reproduce(report, row)}", style="dim", markup=False, soft_wrap=True)
    else:
        to.print(f"      {step}: nothing to check it by", style="dim", markup=False)


def _show_plugin(to: Console, report: Report) -> None:
    """Why nothing could be climbed at all."""
    for row in report.failures:
        if row.implementation == report.plugin:
            to.print(f"L0: {row.outcome.value} {row.id}", style="bold red", markup=False)
            to.print(f"    {row.detail}", markup=False)


def first_failure(report: Report, standing: Standing, level: str) -> Result | None:
    """The first failure of a standing's own at a level."""
    for row in report.failures:
        same = row.implementation in (standing.implementation, report.plugin)
        if same and row.level == level and row.case.get("dtype", "") in ("", standing.dtype):
            return row
    return None
