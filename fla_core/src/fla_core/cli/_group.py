"""Command lines that cannot be understood, told under ``--json`` as every other error is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from fla_core.cli import _view


class Group(TyperGroup):
    """Prints usage errors as a JSON document where one was asked for."""

    def make_context(self, info_name: Any, args: list[str], *more: Any, **extra: Any) -> Any:
        """Read the words that come before a command."""
        as_json = "--json" in args
        with _told(as_json):
            context = super().make_context(info_name, args, *more, **extra)
            context.meta[__name__] = as_json
            return context

    def invoke(self, ctx: Any) -> Any:
        """Read the words of a command and run it."""
        with _told(ctx.meta[__name__]):
            return super().invoke(ctx)


@contextlib.contextmanager
def _told(as_json: bool) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # By what it can do: typer has a copy of click's classes from 0.20 or so on.
        if not (as_json and hasattr(error, "format_message") and hasattr(error, "exit_code")):
            raise
        _view.emit({"error": {"type": type(error).__name__, "message": error.format_message()}})
        raise typer.Exit(error.exit_code) from None
