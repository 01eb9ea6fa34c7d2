"""The command ``fla-conformance``: prove a backend, level by level.

Exit codes: 0 everything ended as it should, 1 something did not, 2 the question itself cannot be
understood.
"""

from __future__ import annotations

import warnings

import typer

from fla_conformance import __version__
from fla_conformance.cli import faults, ladder, promote, render, run
from fla_core.cli.version import add_version

app = typer.Typer(
    name="fla-conformance",
    help="Prove a linear attention backend against the reference mathematics.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    run.run,
    ladder.ladder,
    render.report,
    render.badge,
    render.draft,
    promote.promote,
    faults.faults,
):
    # Its whole first sentence in the list of commands, where click would cut it short.
    app.command(short_help=(command.__doc__ or "").partition("\n\n")[0])(command)
add_version(app, lambda: __version__)


def main() -> None:
    """Entry point of the installed script."""
    # Torch says so at its import without numpy, which no command needs.
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")
    app()
