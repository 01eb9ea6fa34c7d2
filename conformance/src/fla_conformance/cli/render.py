"""``report``, ``badge`` and ``draft``: what can be made of reports that exist."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fla_conformance.cli import options, view
from fla_conformance.cli.outputs import Outputs, write_cases

if TYPE_CHECKING:
    from fla_conformance.report import Report

Files = Annotated[list[Path], typer.Argument(help="Reports, or the JSON lines of a run cut short.")]


@view.command
def report(
    files: Files,
    json: options.JsonFile = None,
    html: options.HtmlFile = None,
    junit: options.JunitFile = None,
    markdown: options.MarkdownFile = None,
    cases: Annotated[Path | None, typer.Option(help="Folder for the cases that failed.")] = None,
) -> None:
    """Print a report, or render it; several parts of one plugin on one machine become one.

    Exit code 1 when anything in it did not end as it should.
    """
    found = _read(files)
    to = view.console()
    outputs = Outputs(json, html, junit, markdown)
    written = outputs.write(found) + (write_cases(found, cases) if cases else [])
    view.written(to, written)
    if not written:
        view.show(to, found)
    if not found.ok:
        raise typer.Exit(1)


@view.command
def badge(
    files: Files,
    op: Annotated[str, typer.Option(help="Only these contracts, as a glob.")] = "*",
    out: Annotated[Path | None, typer.Option(help="Folder for SVG files.")] = None,
) -> None:
    """Print what each contract's badge says, as computed from the report; --out writes SVG."""
    from fla_conformance.report import badge as badges

    found = _read(files)
    standings = found.standings
    contracts = dict.fromkeys(s.contract for s in standings if fnmatchcase(s.contract, op))
    if not contracts:
        typer.echo(f"the report has no contract that matches {op!r}", err=True)
        raise typer.Exit(2)
    for contract in contracts:
        typer.echo(badges.text(standings, contract))
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            path = out / badges.file_name(found.plugin, contract)
            path.write_text(badges.render(standings, contract), encoding="utf-8")


@view.command
def draft(files: Files) -> None:
    """Print entries for conformance-expect.toml, one for each failure; the reasons are yours."""
    from fla_conformance.expect import draft as drafted

    typer.echo(drafted(_read(files).results), nl=False)


def _read(files: list[Path]) -> Report:
    from fla_conformance.report.merge import merge, read

    return merge([read(path) for path in files])
