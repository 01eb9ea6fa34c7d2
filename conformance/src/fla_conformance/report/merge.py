"""Reading reports from files, and making one of several parts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fla_conformance.report.document import Report, ReportError
from fla_conformance.stream import Past

_SAME = ("suite", "plugin", "host", "dists")


def read(path: Path) -> Report:
    """A report, or what there is of a run that was cut short.

    Raises:
        ReportError: it is neither.
        ResumeError: it is a stream of JSON lines, and not readable.
    """
    if not path.is_file():
        raise ReportError(str(path), "there is no such file")
    if path.suffix != ".jsonl":
        return Report.read(path)
    past = Past(path)
    return Report.of(past.header, past.results.values())


def merge(parts: Sequence[Report]) -> Report:
    """One report of several runs of one plugin on one machine; of two rows the later counts.

    Raises:
        ReportError: the runs do not belong together; names what differs.
    """
    first, *others = parts
    if not others:
        return first
    for part in others:
        for name in _SAME:
            old, new = first.header[name], part.header[name]
            if old != new:
                problem = f"{name} differs: {json.dumps(old)} and {json.dumps(new)}"
                raise ReportError("this set of files", problem)
    rows = {(r.implementation, r.level, r.id): r for part in parts for r in part.results}
    chosen = [part.header["selection"] for part in parts]
    selection = {
        **first.header["selection"],
        "op": ",".join(dict.fromkeys(selection["op"] for selection in chosen)),
        "level": max(selection["level"] for selection in chosen),
        "only": next((selection["only"] for selection in chosen if selection["only"]), ""),
    }
    header = {
        **first.header,
        "selection": selection,
        "seconds": sum(part.header["seconds"] for part in parts),
        "complete": all(part.header["complete"] for part in parts),
    }
    problems = dict.fromkeys(text for part in parts for text in part.problems)
    return Report.of(header, rows.values(), problems)
