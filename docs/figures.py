"""The tables of measured figures, from the rows that a bench wrote and from conformance reports.

Each file in ``h200`` is what a run of ``check_and_time.py --json`` wrote on that card; a call that
several took has its figures from the latest. ``peers-h200.json`` has figures of other packages, and
so have runs that timed them beside ours. A row that is not ``ok`` has its status for a figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from support import PROOFS, lowest, reports
from tables import ROOT, rows

from fla_core.cli.calls.bench.rows import Row, Stored, described, read

FOLDER = ROOT / "docs" / "benchmarks"
OURS, PEERS = FOLDER / "h200", FOLDER / "peers-h200.json"
OWN, ANCHOR = "ours", "sdpa"
MAIN = {"B": 2, "T": 8192, "H": 16, "K": 128, "V": 128}
BACKEND, ARCH = "cuda", "sm90"


def taken(folder: Path = OURS) -> str:
    """Where and when the rows were taken, and how many of each run are shown."""
    runs = _runs(folder)
    latest = {(row.provider, row.key): run for run in runs for row in run.rows}
    told = []
    for run in runs:
        shown = sum(latest[row.provider, row.key] is run for row in run.rows)
        told.append(
            f"- {described(run.host)}; {run.taken}; {shown} of {len(run.rows)} rows shown.\n"
        )
    return "".join(told)


def timings(folder: Path = OURS) -> str:
    """Every operator at the main shape."""
    measured = ("forward ms", "forward + backward ms", "peak MiB")
    headers = ("operator", *measured, "host µs, forward", "host µs, with backward")
    lines = []
    for (title, _), found in _calls(_measured(folder)).items():
        if _is_main(found):
            hosts = (_whole(found.get(direction), "host_us") for direction in ("fwd", "both"))
            lines.append((f"`{title}`", *_figures(found), *hosts))
    return rows(headers, lines)


def other_shapes(folder: Path = OURS) -> str:
    """The same at every other shape: forward, forward and backward."""
    known = _calls(_measured(folder))
    known = {key: found for key, found in known.items() if not _is_main(found)}
    known = {key: found for key, found in known.items() if "decode" not in found}
    shapes = list(dict.fromkeys(shape for _, shape in known))
    lines = []
    for title in dict.fromkeys(title for title, _ in known):
        cells = []
        for shape in shapes:
            found = known.get((title, shape), {})
            cells.append(", ".join(_ms(found[d]) for d in ("fwd", "both") if d in found))
        lines.append((f"`{title}`", *cells))
    return rows(("operator", *shapes), lines)


def steps(folder: Path = OURS) -> str:
    """Every operator's decode steps."""
    headers = ("operator", "shape", "ms", "from a graph", "host µs")
    lines = []
    for (title, shape), found in _calls(_measured(folder)).items():
        if row := found.get("decode"):
            graph = "" if row.graph_ms is None else f"{row.graph_ms:.4f}"
            ms = row.status if row.ms is None else f"{row.ms:.4f}"
            lines.append((f"`{title}`", shape, ms, graph, _whole(row, "host_us")))
    return rows(headers, lines)


def peers(ours: Path = OURS, others: Path = PEERS) -> str:
    """The stored rows of other packages, then those of our runs, where we have the same call."""
    measured = ("forward ms", "forward + backward ms", "peak MiB")
    headers = ("operator", "shape", "by", *(x for name in measured for x in (name, "here")))
    lines = [*_beside(read(others).rows, _measured(ours))]
    for run in _runs(ours):
        theirs = [row for row in run.rows if row.provider not in (OWN, ANCHOR)]
        lines += _beside(theirs, [row for row in run.rows if row.provider == OWN], ", in one run")
    return rows(headers, lines)


def _beside(
    theirs: Iterable[Row], ours: Iterable[Row], remark: str = ""
) -> Iterator[tuple[str, ...]]:
    here = {row.key: row for row in ours}
    for provider, rows_of in _by_provider(theirs).items():
        for (title, shape), found in _calls(rows_of).items():
            own = {d: here[row.key] for d, row in found.items() if row.key in here}
            if own and "decode" not in own:
                pairs = zip(_figures(found), _figures(own), strict=True)
                yield (f"`{title}`", shape, provider + remark, *(x for pair in pairs for x in pair))


def proven(folder: Path = PROOFS) -> str:
    """What the reports of whole runs of the conformance suite on this card say."""
    headers = ("implementation", "checks", "reached", "date")
    lines = []
    for _, report in reports(folder):
        if report["schema"] == "fla-proof/1" or report["host"]["arch"] != ARCH:
            continue
        if report["plugin"]["name"] != BACKEND or not report["complete"]:
            continue
        date = report["started"].partition("T")[0]
        for name in dict.fromkeys(one["implementation"] for one in report["summary"]):
            own = [one for one in report["summary"] if one["implementation"] == name]
            # Those of the plugin as a whole are every implementation's.
            whose = (name, report["plugin"]["name"])
            checks = sum(one["implementation"] in whose for one in report["cases"])
            reached = _listed(lowest((one["dtype"], one["level"]) for one in own))
            lines.append((f"`{name}`", str(checks), reached, date))
    return rows(headers, lines)


def _runs(folder: Path) -> list[Stored]:
    return sorted((read(path) for path in folder.glob("*.json")), key=lambda run: run.taken)


def _measured(folder: Path) -> Iterable[Row]:
    """The latest row of every call of ours, in the order in which calls were first taken."""
    every = (row for run in _runs(folder) for row in run.rows)
    return list({row.key: row for row in every if row.provider == OWN}.values())


def _calls(found: Iterable[Row]) -> dict[tuple[str, str], dict[str, Row]]:
    """By title and shape, in the order of the rows, then by direction."""
    known: dict[tuple[str, str], dict[str, Row]] = {}
    for row in found:
        known.setdefault((row.title, row.shape_text), {})[row.direction] = row
    return known


def _by_provider(found: Iterable[Row]) -> dict[str, list[Row]]:
    known: dict[str, list[Row]] = {}
    for row in found:
        known.setdefault(f"{row.provider} {row.version}".strip(), []).append(row)
    return known


def _is_main(found: Mapping[str, Row]) -> bool:
    row = next(iter(found.values()))
    groups = row.shape.get("HV", row.shape["H"]) // row.shape["H"]
    sizes = {axis: size for axis, size in row.shape.items() if axis in MAIN}
    return sizes == MAIN and groups == 1 and row.lengths is None


def _figures(found: Mapping[str, Row]) -> tuple[str, str, str]:
    """Forward, forward and backward, the memory of both."""
    both = found.get("both")
    return _ms(found.get("fwd")), _ms(both), _whole(both, "peak_mib")


def _ms(row: Row | None) -> str:
    if row is None:
        return ""
    return row.status if row.ms is None else f"{row.ms:.3f}"


def _whole(row: Row | None, figure: str) -> str:
    value = None if row is None else getattr(row, figure)
    return "" if value is None else f"{value:.0f}"


def _listed(levels: Mapping[str, str]) -> str:
    return ", ".join(f"{dtype} {level}" for dtype, level in sorted(levels.items()))
