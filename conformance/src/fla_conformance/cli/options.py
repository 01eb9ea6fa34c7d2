"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fla_conformance.levels import LEVELS
from fla_conformance.suite import BUDGETS

Plugin = Annotated[str, typer.Argument(help="Name of the plugin, as FLA_BACKEND calls it.")]
Op = Annotated[str, typer.Option(help="Only these, as a glob over contracts, names and ids.")]
Device = Annotated[str, typer.Option(help="Where; the first that the plugin's card names.")]
Seed = Annotated[int, typer.Option(help="Seed of the random cases.")]
Isolate = Annotated[
    bool, typer.Option("--isolate", help="One child process for each implementation.")
]
Timeout = Annotated[float, typer.Option(min=1, help="Seconds for one check, with --isolate.")]
Expect = Annotated[
    Path | None, typer.Option(help="Expected failures; conformance-expect.toml of the plugin.")
]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the report.")]
HtmlFile = Annotated[Path | None, typer.Option("--html", help="Write a page to publish.")]
JunitFile = Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML.")]
MarkdownFile = Annotated[Path | None, typer.Option("--markdown", help="Write Markdown tables.")]


def level(text: str) -> str:
    """One of L0 to L4.

    Raises:
        BadParameter: it is none of them.
    """
    if text.upper() not in LEVELS:
        raise typer.BadParameter(f"must be one of {', '.join(LEVELS)}, got {text!r}")
    return text.upper()


def budget(text: str) -> str | int:
    """``ci``, ``full`` or a positive number.

    Raises:
        BadParameter: it is none of them.
    """
    if text in BUDGETS:
        return text
    if text.isascii() and text.isdigit() and int(text):
        return int(text)
    raise typer.BadParameter(
        f"--budget must be ci, full or a number of cases, 1 or more, got {text!r}"
    )


Level = Annotated[str, typer.Option(callback=level, help="The highest level, L0 to L4.")]
Budget = Annotated[
    str, typer.Option(help="ci, full, or a number of cases for each implementation and level.")
]
