"""``fla-kernels bench``: how fast operators are here, beside other providers of the same names.

JSON: the document of :mod:`fla_core.cli.calls.bench.rows`, schema ``fla-bench/1``: ``schema``,
``taken``, ``host`` (device and versions), ``rows`` (one for each call, direction and provider:
``operator``, ``variant``, ``provider``, ``version``, ``shape``, ``lengths``, ``dtype``,
``direction``, ``status``, ``text``, ``implementation``, ``errors``, ``bound``, ``ms``,
``graph_ms``, ``host_us``, ``peak_mib``, ``first_s``), and with ``--against`` ``against``
(``source``, ``taken``, ``host``, ``calls``).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fla_core.cli import _view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fla_core.cli.calls.bench.compare import Change
    from fla_core.cli.calls.bench.rows import Row, Stored


@_view.command
def bench(
    operators: Annotated[
        list[str] | None,
        typer.Argument(
            help="kda, chunk_kda, 'chunk_*', chunk_kda:gate, 'chunk_kda:*'; all chunk_*."
        ),
    ] = None,
    provider: Annotated[
        list[str] | None,
        typer.Option(help="ours, fla, flash-qla, or a module with these names; repeats."),
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="B,T,H,K,V or B,T,H,HV,K,V; repeats.")
    ] = None,
    varlen: Annotated[
        int, typer.Option(help="Pack the tokens as that many sequences; 0 packs nothing.")
    ] = 0,
    direction: Annotated[
        list[str] | None, typer.Option(help="fwd or both (with backward); repeats; all.")
    ] = None,
    decode: Annotated[
        bool, typer.Option("--decode", help="One-token steps of B sequences too.")
    ] = False,
    first: Annotated[
        bool, typer.Option("--first", help="First calls too, nothing compiled; slow.")
    ] = False,
    dtype: Annotated[str, typer.Option(help="Of q, k and v: bf16, fp16, fp32.")] = "",
    device: Annotated[str, typer.Option(help="Where; the accelerator if there is one.")] = "",
    backend: Annotated[str | None, typer.Option(help="Policy of ours, as in FLA_BACKEND.")] = None,
    budget: Annotated[float, typer.Option(help="Seconds that one figure may take.")] = 0.1,
    beside: Annotated[
        list[Path] | None, typer.Option(help="Figures taken elsewhere, to show beside; repeats.")
    ] = None,
    against: Annotated[str, typer.Option(help="A git revision, or a file that --out wrote.")] = "",
    out: Annotated[Path | None, typer.Option(help="Write the JSON document here too.")] = None,
    png: Annotated[Path | None, typer.Option(help="Draw a chart (needs matplotlib).")] = None,
    as_json: _view.Json = False,
) -> None:
    """Time operators: forward, backward, memory, host time; after they were found to be right.

    Each call is first compared with the float64 definition. Where it is off, "wrong" stands in
    place of a speed, and the exit code is 1. torch's softmax attention is timed in every run, so
    that figures of different machines can be held against each other.
    """
    from fla_core.cli._files import check_writable
    from fla_core.cli.calls.bench import anchor, chart, compare, rows
    from fla_core.cli.calls.bench.ask import ON_CPU, ON_DEVICE, Asked
    from fla_core.cli.calls.bench.runner import Bench
    from fla_core.cli.calls.problem import find_device, find_dtype

    where = find_device(device)
    on_cpu = where.type == "cpu"
    asked = Asked(
        operators or (),
        shape or [ON_CPU if on_cpu else ON_DEVICE],
        varlen,
        direction or ["fwd", "both"],
        decode,
        find_dtype(dtype or ("fp32" if on_cpu else "bf16")),
        budget,
    )
    asked.check()
    check_writable("bench", "out", out, makes_folders=False)
    calls, anchors = list(asked.calls()), list(asked.anchors())
    providers = anchor.find_all(provider or ["ours"], backend)
    stored = [rows.read(path, "beside") for path in beside or ()]
    if png is not None:
        check_writable("bench", "png", png, makes_folders=False)
        chart.available(png)
    measured = Bench(where, budget, first)
    found: list[Row] = []
    with _view.stdout_to_stderr(), _view.working("timing") as tell:
        earlier = compare.other(against, _words(sys.argv)) if against else None
        for workload, way in calls:
            for one in providers:
                tell(f"{one.name} {workload.recipe.title} {workload.text} {way}")
                found.append(measured.run(workload, one, way))
        warm = replace(measured, first=False)
        found += [warm.run(workload, anchor.Anchor(), way) for workload, way in anchors]
    changes = [] if earlier is None else compare.changes(earlier.rows, found)
    host = rows.machine(where)
    document = rows.document(found, host, **_against(earlier, changes))
    if out is not None:
        out.write_text(rows.text(document), encoding="utf-8")
    if as_json:
        _view.emit(document)
    else:
        _show(found, stored, rows.described(host))
        _show_changes(earlier, changes)
    if png is not None:
        elsewhere = [row for one in stored for row in one.renamed()]
        chart.draw([*found, *elsewhere], png, rows.described(host))
    if any(row.status in ("wrong", "error") for row in found):
        raise typer.Exit(1)


_HEADERS = ("operator", "by", "ms", "graph ms", "host us", "MiB", "first s", "off by", "what ran")
_TEXTS = {"fwd": "forward", "both": "forward and backward", "decode": "one token, state in and out"}


def _words(argv: Sequence[str]) -> list[str]:
    """The command line without what another revision is not asked for."""
    words = list(argv[argv.index("bench") + 1 :]) if "bench" in argv else []
    kept: list[str] = []
    skip = False
    for word in words:
        name, _, value = word.partition("=")
        if skip or name == "--json":
            skip = False
        elif name in ("--against", "--out", "--png", "--beside"):
            skip = not value
        else:
            kept.append(word)
    return kept


def _against(earlier: Stored | None, changes: Sequence[Change]) -> dict[str, Any]:
    if earlier is None:
        return {}
    calls = [change.to_json() for change in changes]
    facts = {"source": earlier.name, "taken": earlier.taken, "host": dict(earlier.host)}
    return {"against": {**facts, "calls": calls}}


def _show(found: Sequence[Row], stored: Sequence[Stored], host: str) -> None:
    to = _view.console()
    beside = [row for one in stored for row in one.renamed()]
    to.print(f"Bench on {host}", style="bold")
    legend = "off by: distance from the float64 definition in units"
    if any(row.host_us is not None for row in (*found, *beside)):
        legend += "; host us: what a call keeps the host busy for"
    to.print(legend, style="dim")
    panels: dict[tuple[str, str, str], list[Row]] = {}
    for row in found:
        panels.setdefault((row.shape_text, row.dtype, row.direction), []).append(row)
    for (shape, kind, way), rows in panels.items():
        titles = {row.title for row in rows}
        same = (r for r in beside if (r.shape_text, r.dtype, r.direction) == (shape, kind, way))
        rows = [*rows, *(row for row in same if row.title in titles)]
        order = list(dict.fromkeys(row.title for row in rows))
        cells = [_cells(row) for row in sorted(rows, key=lambda row: order.index(row.title))]
        # On a CPU most columns are empty.
        kept = [i for i in range(len(_HEADERS)) if i < 3 or any(line[i] for line in cells)]
        _view.heading(to, f"{shape} {kind}, {_TEXTS[way]}")
        lines = [[line[i] for i in kept] for line in cells]
        _view.table(to, [_HEADERS[i] for i in kept], lines)
    for row in found:
        if row.text:
            to.print()
            to.print(_view.styled(row.status), f"{row.provider} {row.title} {row.direction}")
            to.print(row.text, markup=False, soft_wrap=True)
    for one in stored:
        to.print()
        to.print(f"{one.name}: taken {one.taken} on {one.environment}; not checked here")


def _cells(row: Row) -> tuple[str, ...]:
    worst = max(row.errors.values(), default=None)
    speed = f"{row.ms:.3f}" if row.ms is not None else row.status
    return (
        row.title,
        f"{row.provider} {row.version}".rstrip() if row.provider != "ours" else "ours",
        speed,
        _number(row.graph_ms, 3),
        _number(row.host_us, 0),
        _number(row.peak_mib, 0),
        _number(row.first_s, 1),
        _number(worst, 2),
        row.implementation,
    )


def _number(x: float | None, digits: int) -> str:
    return "" if x is None else f"{x:.{digits}f}"


def _show_changes(earlier: Stored | None, changes: Sequence[Change]) -> None:
    if earlier is None:
        return
    to = _view.console()
    _view.heading(to, f"Against {earlier.name} ({earlier.taken}, {earlier.environment})")
    lines = [
        (
            change.row.title,
            change.row.shape_text,
            change.row.direction,
            f"{change.before_ms:.3f}",
            f"{change.after_ms:.3f}",
            f"{change.ratio:.2f}x",
        )
        for change in changes
    ]
    if lines:
        _view.table(to, ("operator", "shape", "direction", "then ms", "now ms", "speed"), lines)
    else:
        to.print("no call has a speed in both")
