"""The option ``--version`` of a program made of commands."""

# typer evaluates annotations where it finds them, so they are no strings: `say` is a closure.

from collections.abc import Callable
from typing import Annotated

import typer


def add_version(app: typer.Typer, version: Callable[[], str]) -> None:
    """Give a program ``--version``, which prints its name and version and exits with 0.

    Args:
        app: the program; its name and help are kept.
        version: asked only when it is to be printed.
    """

    def say(wanted: bool) -> None:
        if wanted:
            typer.echo(f"{app.info.name} {version()}")
            raise typer.Exit

    option = typer.Option(
        "--version", callback=say, is_eager=True, help="Print the version and exit."
    )

    @app.callback(help=app.info.help)
    def program(version: Annotated[bool, option] = False) -> None: ...
