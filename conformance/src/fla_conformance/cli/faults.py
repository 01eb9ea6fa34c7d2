"""``fla-conformance faults``: does the suite fail what is wrong?"""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fla_conformance.cli import options, view

if TYPE_CHECKING:
    from rich.console import Console

    from fla_conformance.faults import Finding


def _budget(text: str) -> str:
    if text not in ("ci", "full"):
        raise typer.BadParameter(f"must be ci or full, got {text!r}")
    return text


@view.command
def faults(
    op: Annotated[str, typer.Option(help="Only these contracts or public names, a glob.")] = "*",
    fault: Annotated[str, typer.Option(help="Only these faults, a glob.")] = "*",
    budget: Annotated[
        str,
        typer.Option(callback=_budget, help="ci: two checks for each fault; full: every one."),
    ] = "ci",
    laws: Annotated[
        bool, typer.Option("--laws", help="Name the laws that see each; slow.")
    ] = False,
    json: options.JsonFile = None,
) -> None:
    """Plant every known fault into a right implementation; the suite must fail each of them.

    A fault survives when no case can tell it, or when one that can does not: exit code 1.
    """
    from fla_conformance.faults import hunt, hunts
    from fla_conformance.session import RunError

    pairs = list(hunts(op, fault))
    if not pairs:
        raise RunError(f"no fault matches {fault!r} in {op!r}")
    findings = []
    with view.counting(len(pairs)) as tell:
        for one, contract in pairs:
            tell(f"{contract.name} {one.name}")
            findings.append(hunt(one, contract, budget, laws))
    _show(view.console(), findings)
    if json is not None:
        _write(json, findings)
    if any(finding.survives for finding in findings):
        raise typer.Exit(1)


def _show(to: Console, findings: Sequence[Finding]) -> None:
    from rich.table import Table

    from fla_conformance.faults import FAULTS

    by_fault: dict[str, list[Finding]] = {}
    for finding in findings:
        by_fault.setdefault(finding.fault, []).append(finding)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("fault", "what", "contracts", "checks", "caught at"):
        table.add_column(name, justify="right" if name == "checks" else "left", overflow="fold")
    for name, group in by_fault.items():
        checks = sum(len(finding.sightings) for finding in group)
        survives = any(finding.survives for finding in group)
        levels = " ".join(sorted({finding.level for finding in group if finding.level}))
        verdict = "[bold red]survives[/]" if survives else f"[green]{levels}[/]"
        table.add_row(name, FAULTS[name].what, str(len(group)), str(checks), verdict)
    to.print(table)
    survivors = [finding for finding in findings if finding.survives]
    for finding in survivors:
        to.print(f"\n[bold red]survives[/] {finding.fault} in {finding.contract}")
        for sighting in finding.missed:
            to.print(f"  {sighting.outcome.value} {sighting.id}", markup=False, soft_wrap=True)
        if not finding.sightings:
            to.print("  no case can tell it", markup=False)
    caught = f"{len(findings) - len(survivors)} of {len(findings)} caught"
    to.print(f"\n{caught}", style="bold red" if survivors else "green")


def _write(path: Path, findings: Sequence[Finding]) -> None:
    rows = [{**asdict(one), "level": one.level, "survives": one.survives} for one in findings]
    document = {"schema": "fla-conformance-faults/1", "findings": rows}
    path.write_text(json_module.dumps(document, indent=2) + "\n", encoding="utf-8")
