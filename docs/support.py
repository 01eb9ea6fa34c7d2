"""The table of supported hardware, from what backends declare and from reports of what was seen.

Reports are the JSON files of ``docs/proofs``: those of ``fla-conformance run --json`` from a
machine with the device, and ``fla-proof/1`` of the drivers that need none. Nothing else adds a word
to the table, and a report with a fault adds none for the contract it lies in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tables import ROOT, Incomplete, records, rows

PROOFS = ROOT / "docs" / "proofs"
RUN, LOWERED, COMPILED, INTERPRETED, DECLARED = (
    "run on hardware",
    "lowered code run on CPU",
    "compiled",
    "interpreted",
    "declared",
)
WORDS = (RUN, LOWERED, COMPILED, INTERPRETED, DECLARED)
"""What can be said of an implementation on a chip, strongest first."""

RESOURCES = ("shared", "registers", "stack")
"""What reports say that a kernel takes."""

ANY_CHIP = "host"
"""Code that ran there was compiled for no chip in particular."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one report says of one contract.

    Attributes:
        backend, arch, contract: of what; ``ANY_CHIP`` stands for every chip of the backend.
        word: one of ``WORDS``.
        levels: that each dtype reached on hardware; ``""`` for none.
    """

    backend: str
    arch: str
    contract: str
    word: str
    levels: Mapping[str, str] = field(default_factory=dict)


def matrix(folder: Path = PROOFS) -> str:
    """For each backend that declares architectures: a line a contract, a column a chip."""
    seen = [one for _, document in reports(folder) for one in sightings(document)]
    parts = []
    for record in records():
        declared = {item.contract: item.arch for item in record.implementations if item.arch}
        chips = list(dict.fromkeys(arch for archs in declared.values() for arch in archs))
        if not chips:
            continue
        lines = [
            (f"`{contract}`", *(_cell(seen, record.name, arch, contract) for arch in chips))
            for contract in declared
        ]
        parts.append(rows((f"`{record.name}`", *chips), lines))
    return "\n".join(parts)


def evidence(folder: Path = PROOFS) -> str:
    """A line a report: what was seen where, under which toolchain, when."""
    takes = ("cases", "kernels", "shared", "regs", "spill", "margin")
    headers = ("report", "what", "on", "toolchain", "date", *takes)
    lines = [_line(path, document) for path, document in reports(folder)]
    return rows(headers, lines)


def worst(folder: Path = PROOFS) -> str:
    """A line a backend: kernels compiled for all its chips, and which takes most of what."""
    lines = []
    for record in records():
        seen = [
            document
            for _, document in reports(folder)
            if document["schema"] == "fla-proof/1"
            and (document["backend"], document["kind"]) == (record.name, COMPILED)
        ]
        if not seen:
            continue
        taken = [
            (most, name, document["arch"])
            for document in seen
            for one in document["implementations"]
            for name, most in one["functions"].items()
        ]
        count = sum(one["kernels"] for document in seen for one in document["implementations"])
        lines.append(
            (f"`{record.name}`", str(len(seen)), str(count), *(_most(taken, r) for r in RESOURCES))
        )
    return rows(("backend", "chips", "kernels", "shared", "regs", "spill"), lines)


def _most(taken: Sequence[tuple[Mapping[str, int], str, str]], resource: str) -> str:
    most, name, arch = max(taken, key=lambda one: one[0][resource])
    return f"{most[resource]}: `{name}`, {arch}" if most[resource] else "0"


def reports(folder: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every report of a folder, by name.

    Raises:
        Incomplete: a file is no report.
    """
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("schema") not in ("fla-proof/1", "fla-conformance-report/1"):
            raise Incomplete(f"{path.name} is neither a fla-proof/1 nor a conformance report")
        yield path, document


def sightings(document: Mapping[str, Any]) -> Iterator[Seen]:
    """What a report adds to the table."""
    if document["schema"] == "fla-proof/1":
        for one in document["implementations"]:
            if not one["faults"]:
                yield Seen(document["backend"], document["arch"], one["contract"], document["kind"])
        return
    name, arch = document["plugin"]["name"], document["host"]["arch"]
    for contract in dict.fromkeys(one["contract"] for one in document["summary"]):
        standings = [one for one in document["summary"] if one["contract"] == contract]
        levels = lowest((one["dtype"], one["level"]) for one in standings)
        yield Seen(name, arch, contract, RUN, levels)


def lowest(levels: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """The level of each dtype that all implementations with it reached."""
    found: dict[str, str] = {}
    for dtype, level in levels:
        found[dtype] = min(level, found.get(dtype, level))
    return found


def _cell(seen: Sequence[Seen], backend: str, arch: str, contract: str) -> str:
    found = [
        one
        for one in seen
        if (one.backend, one.contract) == (backend, contract) and one.arch in (arch, ANY_CHIP)
    ]
    reached = lowest(pair for one in found for pair in one.levels.items())
    if levels := [f"{d} {level}" for d, level in sorted(reached.items()) if level > "L0"]:
        return f"{RUN} ({', '.join(levels)})"
    # Short of hardware each word is of another step: numbers, the compiler, the chip's own plan.
    said = [word for word in WORDS if word != RUN and word in {one.word for one in found}]
    return "; ".join(said) or DECLARED


def _line(path: Path, document: Mapping[str, Any]) -> tuple[str, ...]:
    name = f"[`{path.name}`](proofs/{path.name})"
    if document["schema"] != "fla-proof/1":
        plugin, host = document["plugin"], document["host"]
        toolchain = plugin["toolchain"]
        versions = {n: v for n, v in document["dists"].items() if n in ("torch", toolchain)}
        where = f"{host['name']} ({host['arch']})"
        date = document["started"].partition("T")[0]
        return name, f"{plugin['name']}: {RUN}", where, _listed(versions), date, *[""] * 6
    made = document["implementations"]
    functions = [worst for one in made for worst in one.get("functions", {}).values()]
    most = [str(max(one[key] for one in functions)) if functions else "" for key in RESOURCES]
    margins = [one["worst_margin"] for one in made if "worst_margin" in one]
    margin = f"{max(margins):.2f}" if margins else ""
    what = f"{document['backend']}: {document['kind']}"
    if faults := sum(len(one["faults"]) for one in made):
        what += f", {faults} faults"
    versions = _listed(document["versions"])
    date = min(one["date"] for one in made)
    cases, count = (sum(one.get(key, 0) for one in made) for key in ("cases", "kernels"))
    what_of = (name, what, document["arch"], versions, date)
    return *what_of, str(cases or ""), str(count or ""), *most, margin


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
