"""How every command talks: one console, one kind of table, one way to print JSON and errors."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]

PIPED_WIDTH = 120
"""Columns when nobody is looking; ``COLUMNS`` overrides it."""

STYLES = {
    **dict.fromkeys(("ok", "pass", "accepted", "loaded", "probed", "met", "yes"), "green"),
    **dict.fromkeys(("broken", "faulty", "fail", "error", "denied", "unmet"), "bold red"),
    **dict.fromkeys(("unavailable", "refused", "unverified", "warning", "condition"), "yellow"),
    **dict.fromkeys(("excluded", "not asked", "found", "none", "no", "note"), "dim"),
}

_Command = TypeVar("_Command", bound=Callable[..., Any])


def console() -> Console:
    """A console on the present stdout; wide when piped, without colour under ``NO_COLOR``."""
    from rich.console import Console

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=PIPED_WIDTH if piped else None)


def styled(word: str) -> Text:
    """A word in the colour of the state it names; a word without one stays plain."""
    from rich.text import Text

    return Text(word, style=STYLES.get(word, ""))


def heading(to: Console, text: str) -> None:
    """Start a section."""
    to.print()
    to.print(styled(text), style="bold")


def table(to: Console, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, or one block a row where the terminal is too narrow for its longest words."""
    from rich.measure import Measurement
    from rich.table import Table

    lines = [[styled(cell) for cell in row] for row in rows]
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for header in headers:
        grid.add_column(header, overflow="fold")
    for line in lines:
        grid.add_row(*line)
    if Measurement.get(to, to.options.update(max_width=10_000), grid).minimum <= to.width:
        to.print(grid)
        return
    for line in lines:
        block(to, headers, [cell.plain for cell in line])


def grouped(
    to: Console, headers: Sequence[str], groups: Mapping[str, Sequence[Sequence[str]]], least: int
) -> None:
    """Print rows of one line each below the heading of their group, aligned across the groups.

    Where the terminal is too narrow, the last columns are left out, down to the ``least`` first;
    where even these do not fit, each row is a block with all of its cells.
    """
    from rich.text import Text

    rows = [row for group in groups.values() for row in group]
    widths = [max(map(len, column)) + 2 for column in zip(headers, *rows, strict=True)]
    shown = len(headers)
    while shown > least and sum(widths[:shown]) > to.width:
        shown -= 1
    fits = sum(widths[:shown]) <= to.width  # two of them before the row, none after it

    def line(cells: Sequence[str], style: str = "") -> None:
        padded = Text("  ", style=style)
        for cell, width in zip(cells[:shown], widths, strict=False):
            padded.append_text(styled(cell)).append(" " * (width - len(cell)))
        padded.rstrip()
        to.print(padded)

    if fits:
        line(headers, "dim")
    for name, group in groups.items():
        heading(to, name)
        for row in group:
            if fits:
                line(row)
            else:
                block(to, headers, row, indent=2)


def block(to: Console, headers: Sequence[str], row: Sequence[str], indent: int = 0) -> None:
    """Print one row: its first cell as a title, below it the others with their headers."""
    to.print(styled(" " * indent + row[0]), style="bold")
    pairs(to, zip(headers[1:], row[1:], strict=True), indent)


def pairs(to: Console, rows: Iterable[tuple[str, str]], indent: int = 0) -> None:
    """Print labels and texts in two columns; a row without text is left out."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in rows:
        if text:
            grid.add_row(f"{' ' * indent}  {label}", styled(text))
    to.print(grid)


def emit(data: Any) -> None:
    """Print a JSON document on stdout."""
    typer.echo(json.dumps(data, indent=2, sort_keys=False, default=str))


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send what others print to stderr, so that a JSON document stands alone on stdout."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def working(text: str) -> Iterator[Callable[[str], object]]:
    """Say on a terminal's stderr what is being done; yields a function that changes the text."""
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield status.update


def command(function: _Command) -> _Command:
    """Report this project's errors in their own words, without a traceback.

    Exit code 1 when an implementation is missing or broken, 2 when the question is at fault. Under
    ``--json`` the document is ``{"error": {"type", "message"}}``.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        from fla_core.errors import (
            FlaError,
            ImplementationError,
            NoImplementationError,
            PluginLoadError,
        )

        missing = (ImplementationError, NoImplementationError, PluginLoadError)
        try:
            return function(*args, **kwargs)
        except FlaError as error:
            if kwargs.get("as_json"):
                emit({"error": {"type": type(error).__name__, "message": str(error)}})
            else:
                typer.echo(str(error), err=True)
            raise typer.Exit(1 if isinstance(error, missing) else 2) from None

    return wrapped  # type: ignore[return-value]
