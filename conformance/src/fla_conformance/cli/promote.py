"""``fla-conformance promote FILE``: a case that was found at random joins the grid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fla_conformance.cli import view


@view.command
def promote(
    files: Annotated[list[Path], typer.Argument(help="Cases, as runs and reports save them.")],
    plugin: Annotated[str, typer.Option(help="Into the folder of this plugin.")] = "",
    to: Annotated[Path | None, typer.Option(help="Into this folder instead.")] = None,
) -> None:
    """Copy failing cases to promoted/ beside a plugin's expectations; every run then has them."""
    from fla_conformance.cases import read_case
    from fla_conformance.session import RunError, find_plugin, folder_of

    if bool(plugin) == (to is not None):
        raise RunError("say where to: either --plugin NAME or --to FOLDER")
    folder = to or folder_of(find_plugin(plugin))
    if folder is None:
        raise RunError(f"{plugin} is a module without a folder of its own; use --to FOLDER")
    cases = [read_case(path) for path in files]
    target = folder / "promoted"
    target.mkdir(parents=True, exist_ok=True)
    for case in cases:
        path = target / f"{case.contract}-{case.direction}-{case.key:08x}.json"
        path.write_text(json.dumps(case.to_json(), indent=2) + "\n", encoding="utf-8")
        typer.echo(f"{path}  {case.id}")
