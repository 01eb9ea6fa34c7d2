"""The command ``fla-kernels``: what is installed, what would run and why, and whether it is right.

Every command takes ``--json`` and then prints one JSON document alone on stdout, whose keys are
documented in the module of the command. Exit codes: 0 all is well, 1 something is broken, wrong or
missing, 2 the question itself cannot be understood. ``--version`` alone prints the core's version.
"""

from __future__ import annotations

from typing import Annotated

import typer

from fla_core.cli import backends, bench, doctor, explain, new_plugin, selfcheck, tune, warmup
from fla_core.cli._group import Group

app = typer.Typer(
    name="fla-kernels",
    cls=Group,
    help="Linear attention kernels: what is installed, what would run, and is it right?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    doctor.doctor,
    backends.backends,
    explain.explain,
    selfcheck.selfcheck,
    warmup.warmup,
    bench.bench,
    tune.tune,
    new_plugin.new_plugin,
):
    app.command()(command)


def _say_version(wanted: bool) -> None:
    if wanted:
        from fla_core import __version__

        typer.echo(f"fla-kernels {__version__}")
        raise typer.Exit


@app.callback(help=app.info.help)
def _program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None: ...


def main() -> None:
    """Entry point of the installed script."""
    app()
