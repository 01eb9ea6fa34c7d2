"""``fla-kernels tune``: measure which tiles are fast on the device at hand, and write the table.

JSON: ``plugin``, ``device``, ``host``, ``out`` (where the table was written) and ``tasks``, a list
of ``family``, ``direction``, ``operator``, ``sizes``, ``dtype``, ``complete`` (false when the
budget ran out), ``default_ms``, ``best_ms``, ``tiles`` and ``candidates`` (``tiles``, ``ms``,
``failure``).
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fla_core.cli import _view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fla_core.cli.calls.tune.search import Search
    from fla_core.plugins.tuning import Tuner


@_view.command
def tune(
    op: Annotated[str, typer.Argument(help="Only operators that match this glob.")] = "*",
    plugin: Annotated[str, typer.Option(help="Whose kernels; the first that has tiles.")] = "",
    device: Annotated[str, typer.Option(help="Where; the accelerator if there is one.")] = "",
    size: Annotated[
        list[str] | None, typer.Option(help="K,V to tune for, of those the plugin has; repeats.")
    ] = None,
    budget: Annotated[float, typer.Option(help="Seconds for the whole search.")] = 600.0,
    workers: Annotated[int, typer.Option(help="Processes that compile; 0 is one a core.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write here; where the plugin looks by default.")
    ] = None,
    as_json: _view.Json = False,
) -> None:
    """Try tiles of kernels on this device and write a table of the fastest that are right.

    Each candidate runs in a process that may die of it, and is compared with the float64
    definition. Nothing is tuned at any other time: calls look tiles up in the table.
    """
    from fla_core.cli._files import check_writable
    from fla_core.cli._select import contracts_matching
    from fla_core.cli.calls.bench.rows import machine
    from fla_core.cli.calls.problem import find_device
    from fla_core.cli.calls.tune.crew import Crew
    from fla_core.cli.calls.tune.find import find_tuner, tunable
    from fla_core.cli.calls.tune.search import search
    from fla_core.errors import ContractError

    where, contracts = find_device(device), list(contracts_matching(op))
    if not 0 < budget < math.inf:
        raise ContractError("tune", "budget", "a positive number of seconds", str(budget))
    if workers < 0:
        raise ContractError("tune", "workers", "0 (one a core) or more processes", str(workers))
    deadline = time.monotonic() + budget
    with _view.stdout_to_stderr(), _view.working("looking for plugins") as tell:
        name = plugin or next((record.name for record in tunable(where)), "")
        tuner = find_tuner(name, where)
        known = tuner.tasks(contracts)
        tasks = [task for task in known if _sized(task.sizes, size or ())]
        if not tasks:
            expected = f"something that {name} tunes: {', '.join(_sizes(known)) or 'nothing of it'}"
            raise ContractError("tune", "the question", expected, f"{op} {' '.join(size or ())}")
        target = out or tuner.table
        earlier = _table(target, tuner)
        check_writable("tune", "out", target, makes_folders=True)
        cores = max(1, (os.cpu_count() or 2) - 1)
        with Crew(name, str(where), 0.03, workers or cores, deadline) as crew:
            found = search(tuner, tasks, crew, tell)
    host = machine(where)
    best = [(s.task, s.best, s.default) for s in found if s.best is not None and s.default]
    if best:
        target.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(tuner.document(best, host, earlier), indent=1) + "\n"
        target.write_text(text, encoding="utf-8")
    if as_json:
        facts = {"plugin": name, "device": str(where), "host": host}
        written = str(target) if best else None
        _view.emit({**facts, "out": written, "tasks": [_told(one) for one in found]})
    else:
        _show(found, name, str(target) if best else "")
    if len(best) < len(found):
        raise typer.Exit(1)


def _table(path: Path, tuner: Tuner) -> Any:
    """The table that is there; None when there is none.

    Raises:
        ContractError: it cannot be read or added to. Better now than after the search.
    """
    from fla_core.errors import ContractError

    if not path.exists():
        return None
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
        tuner.document((), {}, earlier)
    except Exception as error:  # whatever a plugin's own table makes it raise
        expected = "a path without a file, or with a table"
        got = f"{path}: {type(error).__name__}: {error}"
        raise ContractError("tune", "out", expected, got) from None
    return earlier


def _sized(sizes: Any, wanted: Sequence[str]) -> bool:
    return not wanted or f"{sizes['K']},{sizes['V']}" in wanted


def _sizes(tasks: Sequence[Any]) -> list[str]:
    return list(dict.fromkeys(f"{task.sizes['K']},{task.sizes['V']}" for task in tasks))


def _told(one: Search) -> dict[str, Any]:
    best, default = one.best, one.default
    return {
        **one.task.to_json(),
        "complete": one.complete,
        "default_ms": default.ms if default else None,
        "best_ms": best.ms if best else None,
        "tiles": best.tiles if best else None,
        "candidates": [
            {"tiles": each.tiles, "ms": each.ms, "failure": each.failure} for each in one.found
        ],
    }


def _show(found: Sequence[Search], plugin: str, target: str) -> None:
    to = _view.console()
    to.print(f"Tiles of {plugin}", style="bold")
    rows = [
        (
            one.task.text,
            str(len(one.found)),
            str(sum(bool(each.failure) for each in one.found)),
            f"{one.default.ms:.4f}" if one.default and one.default.ms else "",
            f"{one.best.ms:.4f}" if one.best and one.best.ms else "none is right",
            f"{one.speedup:.2f}x" if one.speedup else "",
            "" if one.complete else "the budget ran out",
        )
        for one in found
    ]
    headers = ("search", "tried", "failed", "default ms", "best ms", "speed", "note")
    _view.table(to, headers, rows)
    for one in found:
        for each in one.found:
            if each.failure:
                to.print()
                to.print(_view.styled("fail"), f"{one.task.text} {json.dumps(each.tiles)}")
                to.print(each.failure, markup=False, soft_wrap=True)
    to.print()
    to.print(f"wrote {target}" if target else "nothing was written")
