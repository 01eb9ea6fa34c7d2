"""The report for people: an HTML page that stands alone, and a Markdown table."""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from typing import Any

import jinja2

from fla_conformance.levels import LEVELS, MEANING, TOLERATED
from fla_conformance.report.document import Report
from fla_conformance.report.plots import plots, shown
from fla_conformance.result import Outcome, Result
from fla_core.domain import SHORT_DTYPES


@cache
def environment() -> jinja2.Environment:
    """The templates; everything that comes from a plugin is escaped."""
    loader = jinja2.PackageLoader("fla_conformance.report", "templates")
    env = jinja2.Environment(
        loader=loader,
        autoescape=lambda name: name is not None and name.endswith((".html.j2", ".svg.j2")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters["short"] = lambda dtype: SHORT_DTYPES.get(dtype, dtype)
    env.filters["cell"] = _markdown_cell
    env.filters["command"] = shlex.join
    env.globals.update(LEVELS=LEVELS, MEANING=MEANING)
    return env


def html(report: Report) -> str:
    """A page without references to anything outside itself."""
    return _render("report.html.j2", report)


def markdown(report: Report) -> str:
    """Tables to paste into a README or a summary of a run."""
    return _render("report.md.j2", report)


def _render(template: str, report: Report) -> str:
    failures = [failure(report, row) for row in report.failures]
    return (
        environment()
        .get_template(template)
        .render(
            report=report,
            head=report.header,
            standings=report.standings,
            counts=report.counts,
            failures=failures,
            plots=plots(report.results),
            laws=laws(report.results),
            sections=sections(report.results),
            margin=lambda row: shown(row.margin.worst) if row.margin else "",
            tolerated=TOLERATED,
            Outcome=Outcome,
        )
    )


def failure(report: Report, row: Result) -> dict[str, Any]:
    """A failure with all that is needed to see it again."""
    text = json.dumps(row.case, indent=2)
    encoded = base64.b64encode(text.encode()).decode()
    return {
        "row": row,
        "command": reproduce(report, row),
        "file": file_name(row) if row.case else "",
        "text": text,
        "href": f"data:application/json;base64,{encoded}",
    }


def reproduce(report: Report, row: Result) -> str:
    """The command that runs one check again."""
    chosen = report.header["selection"]
    words = ["fla-conformance", "run", report.plugin, "--device", report.header["host"]["device"]]
    if ":" in row.implementation:
        words += ["--op", row.implementation]
    words += ["--level", row.level, "--budget", chosen["budget"]]
    if chosen["seed"]:
        words += ["--seed", str(chosen["seed"])]
    if chosen["isolated"]:
        words.append("--isolate")
    return shlex.join([*words, "--only", row.id])


def file_name(row: Result) -> str:
    """Name of the file that holds a check's case, the same in every run."""
    key = zlib.crc32(f"{row.implementation} {row.id}".encode())
    contract = row.case.get("contract", "case")
    return f"{contract}-{row.case.get('direction', '')}-{key:08x}.json"


def laws(results: Iterable[Result]) -> list[dict[str, Any]]:
    """For each law and implementation how many cases held it and how many did not."""
    found: dict[str, dict[str, Counter[bool]]] = defaultdict(lambda: defaultdict(Counter))
    for row in results:
        if row.law:
            found[row.law][row.implementation][row.outcome in TOLERATED] += 1
    names = sorted({name for counts in found.values() for name in counts})
    return [
        {"law": law, "counts": [(name, found[law].get(name, Counter())) for name in names]}
        for law in sorted(found)
    ]


def sections(results: Iterable[Result]) -> list[dict[str, Any]]:
    """All results by implementation and level."""
    grouped = groupby(results, lambda row: (row.implementation, row.level))
    return [
        {"implementation": implementation, "level": level, "rows": (rows := list(group)),
         "bad": sum(row.outcome not in TOLERATED for row in rows),
         "seconds": sum(row.seconds for row in rows)}
        for (implementation, level), group in grouped
    ]  # fmt: skip


def _markdown_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
