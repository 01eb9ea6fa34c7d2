"""How every command talks: tables on stdout, progress and errors on stderr."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from fla_conformance.levels import LEVELS, TOLERATED, Standing
from fla_conformance.result import Outcome, Result
from fla_core.domain import SHORT_DTYPES
from fla_core.errors import FlaError, PluginLoadError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from fla_conformance.report import Report

PIPED_WIDTH = 120
"""Columns when nobody is looking; ``COLUMNS`` overrides it."""

SHOWN = 10
"""Failures that are printed; reports have all."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


def command(function: _Command) -> _Command:
    """Report this project's errors in their own words, without a traceback."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except FlaError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(1 if isinstance(error, PluginLoadError) else 2) from None

    return wrapped  # type: ignore[return-value]


def console(stderr: bool = False) -> Console:
    """A console; wide when piped, without colour under ``NO_COLOR``."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    piped = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(stderr=stderr, highlight=False, width=PIPED_WIDTH if piped else None)


@contextmanager
def progress(total: int) -> Iterator[Callable[[Result], None]]:
    """A bar on a terminal's stderr; yields what to call with each result."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.fields[level]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]}", style="bold red"),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.description}", markup=True),
        console=console(stderr=True),
        transient=True,
    )
    failed = 0
    with bar:
        line = bar.add_task("", total=total, level="", failed="")

        def tell(result: Result) -> None:
            nonlocal failed
            failed += result.outcome not in TOLERATED
            bar.update(
                line,
                advance=1,
                level=result.level,
                description=result.implementation,
                failed=f"{failed} failed" if failed else "",
            )

        yield tell


@contextmanager
def counting(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal's stderr; yields what to call with the name of each step."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.description}", markup=True),
        console=console(stderr=True),
        transient=True,
    )
    with bar:
        line = bar.add_task("", total=total)
        yield lambda name: bar.update(line, advance=1, description=name)


def show(to: Console, report: Report) -> None:
    """Print where the implementations stand and what failed."""
    from fla_conformance.report.pages import reproduce

    if report.standings:
        _table(to, report.standings)
    if not report.whole:
        to.print("narrowed or cut short: this run reaches no level", style="yellow")
    for text in report.problems:
        to.print(f"\n[bold red]problem[/] {_plain(text)}")
    for row in report.failures[:SHOWN]:
        to.print(f"\n[bold red]{row.outcome.value}[/] [dim]{_plain(row.implementation)}[/]")
        to.print(row.id, markup=False, soft_wrap=True)
        to.print(_indented(row.detail), markup=False)
        to.print(_indented(reproduce(report, row)), style="dim", markup=False, soft_wrap=True)
    if (more := len(report.failures) - SHOWN) > 0:
        to.print(f"\nand {more} more failures")
    counts = ", ".join(f"{n} {outcome}" for outcome, n in report.counts.items())
    to.print(f"\n{counts or 'nothing was checked'}", style="green" if report.ok else "bold red")


def written(to: Console, files: Iterable[Path]) -> None:
    """Name the files that were written."""
    for path in files:
        to.print(f"written: {path}", style="dim", markup=False, soft_wrap=True)


def _table(to: Console, standings: Iterable[Standing]) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("implementation", "dtype", *LEVELS, "reached"):
        table.add_column(name, justify="right" if name in LEVELS else "left", overflow="fold")
    for standing in standings:
        cells = [_cell(standing, level) for level in LEVELS]
        reached = f"[bold green]{standing.level}[/]" if standing.level else "[bold red]none[/]"
        xfail = f" [dim]{standing.xfails} xfail[/]" if standing.xfails else ""
        dtype = SHORT_DTYPES.get(standing.dtype, standing.dtype)
        table.add_row(_plain(standing.implementation), dtype, *cells, reached + xfail)
    to.print(table)


def _cell(standing: Standing, level: str) -> str:
    if level not in standing.counts:
        return "[dim]-[/]"
    if failed := standing.failed(level):
        return f"[bold red]{failed} of {sum(standing.counts[level].values())} failed[/]"
    expected = standing.counts[level].get(Outcome.XFAIL, 0)
    return f"[green]{standing.passed(level)}[/]" + (f" [yellow]+{expected}[/]" if expected else "")


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines()[:12])
