"""``fla-conformance run PLUGIN``: carry out the suite."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fla_conformance.cli import options, view
from fla_conformance.cli.outputs import Outputs, write_cases

FOLDER = Path(".fla-conformance")
"""Where a run keeps its JSON lines and failing cases unless told otherwise."""


@view.command
def run(
    plugin: options.Plugin,
    op: options.Op = "*",
    device: options.Device = "",
    level: options.Level = "L3",
    budget: options.Budget = "ci",
    seed: options.Seed = 0,
    only: Annotated[str, typer.Option(help="Only the checks with this id, or glob.")] = "",
    case: Annotated[Path | None, typer.Option(help="Only the case in this file.")] = None,
    expect: options.Expect = None,
    isolate: options.Isolate = False,
    timeout: options.Timeout = 300.0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run ended.")] = False,
    json: options.JsonFile = None,
    html: options.HtmlFile = None,
    junit: options.JunitFile = None,
    markdown: options.MarkdownFile = None,
) -> None:
    """Prove a plugin up to a level and say where each of its implementations stands.

    Results are kept in .fla-conformance while the run goes on: after a crash, --resume goes on
    behind it. Exit code 1 when anything did not end as it should.
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
        only,
        case,
        expect,
        isolate,
        timeout,
        argv=("fla-conformance", *sys.argv[1:]),
    )
    outputs = Outputs(json, html, junit, markdown)
    outputs.check()
    prepared = prepare(request)
    lines = stream_path(plugin, prepared.device)
    total = len(prepared.tasks) + len(prepared.early)
    to = view.console()
    try:
        with view.progress(total) as tell:
            report = carry_out(prepared, lines, resume, tell)
    except KeyboardInterrupt:
        text = (
            f"stopped; what has ended is in {lines}: the same command with --resume goes on, and"
            f" `fla-conformance report {lines}` shows it"
        )
        to.print(text, markup=False, soft_wrap=True)
        raise typer.Exit(130) from None
    view.show(to, report)
    view.written(to, outputs.write(report))
    if written := write_cases(report, FOLDER / "cases"):
        text = f"the cases that failed are in {written[0].parent}"
        to.print(text, style="dim", markup=False, soft_wrap=True)
    if not report.ok:
        raise typer.Exit(1)


def stream_path(plugin: str, device: str) -> Path:
    """File of JSON lines of a plugin on a device, in a folder that version control ignores."""
    FOLDER.mkdir(exist_ok=True)
    ignore = FOLDER / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    return FOLDER / f"{plugin}-{device.replace(':', '')}.jsonl"
