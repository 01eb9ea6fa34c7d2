"""The table of supported hardware, from what backends declare and from reports of what was seen.

Reports are the JSON files of ``docs/proofs``: those of ``fla-conformance run --json`` from a
machine with the device, and ``fla-proof/1`` of the drivers that need none. Nothing else adds a word
to the table. A report with a fault adds none for the contract it lies in, nor does one of another
revision of a contract.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import jsonschema
from tables import ROOT, Incomplete, records, rows

from fla_conformance.levels import TOLERATED
from fla_conformance.report import Report, ReportError
from fla_conformance.result import Outcome
from fla_core.contracts import CONTRACTS
from fla_core.plugins import Implementation

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

_Same = TypeVar("_Same")

RESOURCES = ("shared", "registers", "stack")
"""What reports say that a kernel takes."""

ANY_CHIP = "host"
"""Code that ran there was compiled for no chip in particular."""

_TEXT, _COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}
_TAKEN = {"type": "object", "required": RESOURCES, "additionalProperties": _COUNT}
_COMPILED = {"kernels": _COUNT, "functions": {"type": "object", "additionalProperties": _TAKEN}}
_OF_DTYPE = {"type": "object", "required": list(_COMPILED), "properties": _COMPILED}
_PROVEN = {
    "type": "object",
    "required": ["contract", "revision", "dtypes", "faults", "date"],
    "properties": {
        "contract": _TEXT,
        "variant": _TEXT,
        "revision": _COUNT,
        "dtypes": {"type": "array", "minItems": 1, "items": _TEXT},
        "by_dtype": {"type": "object", "additionalProperties": _OF_DTYPE},
        "faults": {"type": "array", "items": _TEXT},
        "date": _TEXT,
        "cases": _COUNT,
        **_COMPILED,
        "worst_margin": {"type": "number"},
    },
}
PROOF = {
    "type": "object",
    "required": ["kind", "backend", "arch", "versions", "implementations"],
    "properties": {
        "kind": {"enum": [LOWERED, COMPILED, INTERPRETED]},
        "backend": _TEXT,
        "arch": _TEXT,
        "versions": {"type": "object", "additionalProperties": _TEXT},
        "implementations": {"type": "array", "minItems": 1, "items": _PROVEN},
    },
    "if": {"properties": {"kind": {"const": COMPILED}}},
    "then": {
        "properties": {"implementations": {"items": {"required": [*_COMPILED, "by_dtype"]}}},
    },
}
"""What is read of a ``fla-proof/1``, as JSON Schema."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one report says of one contract.

    Attributes:
        backend, arch, contract: of what; ``ANY_CHIP`` stands for every chip of the backend.
        variant: of which implementation; ``""`` where a proof is of those with gradients.
        word: one of ``WORDS``.
        levels: that each dtype reached on hardware; ``""`` for none.
    """

    backend: str
    arch: str
    contract: str
    variant: str
    word: str
    levels: Mapping[str, str] = field(default_factory=dict)


def matrix(folder: Path = PROOFS) -> str:
    """What backends declare, and a table of what was seen of it on which chips.

    What has no gradients is declared apart: that its contract ran says nothing of it.
    """
    seen = [one for _, document in reports(folder) for one in sightings(document)]
    offers: dict[tuple[str, ...], list[str]] = {}
    lines: list[tuple[str, ...]] = []
    for record in records():
        declared: dict[str, list[Implementation]] = {}
        for item in filter(lambda item: item.arch, record.implementations):
            declared.setdefault(_title(item), []).append(item)
        if not declared:
            continue
        offers.setdefault(tuple(declared), []).append(f"`{record.name}`")
        of_chip: dict[str, dict[str, str]] = {}
        for title, items in declared.items():
            own = [one for one in seen if one.backend == record.name and _is_of(one, items)]
            for arch in items[-1].arch:
                of_chip.setdefault(arch, {})[title] = _cell(own, arch)
        for chips, words in _alike(of_chip.items()):
            for titles, word in _alike(words.items()):
                what = EVERYTHING if titles == list(declared) else _codes(titles)
                lines.append((f"`{record.name}`", ", ".join(chips), what, word))
    said = [f"{', '.join(names)} declare {_codes(titles)}.\n" for titles, names in offers.items()]
    table = rows(("backend", "chips", "of what it declares", "seen"), lines)
    return "\n".join([*said, table])


EVERYTHING = "everything"
"""In place of all that a backend declares."""


def _alike(pairs: Iterable[tuple[str, _Same]]) -> list[tuple[list[str], _Same]]:
    """Names that have the same, together, in the order of the first."""
    found: list[tuple[list[str], _Same]] = []
    for name, same in pairs:
        names = next((names for names, other in found if other == same), None)
        if names is None:
            found.append(([name], same))
        else:
            names.append(name)
    return found


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _title(item: Implementation) -> str:
    return item.contract if item.backward is not None else f"{item.contract}#{item.variant}"


def _is_of(one: Seen, items: Sequence[Implementation]) -> bool:
    """Whether something was seen of one of the implementations of a line."""
    variants = {item.variant if one.variant or item.backward is None else "" for item in items}
    return one.contract == items[0].contract and one.variant in variants


def evidence(folder: Path = PROOFS) -> str:
    """What was seen where, under which toolchain, when; reports that say the same share a line."""
    takes = ("cases", "kernels", "shared", "regs", "spill", "margin")
    headers = ("what", "on", "dtypes", "toolchain", "date", *takes, "reports")
    alike: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for path, document in reports(folder):
        what, where, *rest = _line(document)
        alike.setdefault((what, *rest), []).append((path.stem, where))
    lines = []
    for (what, *rest), found in alike.items():
        places = dict.fromkeys(where for _, where in found)
        lines.append((what, ", ".join(places), *rest, _links([stem for stem, _ in found])))
    return rows(headers, lines)


def _links(stems: Sequence[str]) -> str:
    """Links to reports, named by what is not the same in all their names."""
    parts = [stem.split("-") for stem in stems]
    same = 0
    if len(parts) > 1:
        columns = list(zip(*parts, strict=False))
        same = next((i for i, words in enumerate(columns) if len(set(words)) > 1), len(columns) - 1)
    return ", ".join(
        f"[`{'-'.join(part[same:])}`](proofs/{stem}.json)"
        for part, stem in zip(parts, stems, strict=True)
    )


def worst(folder: Path = PROOFS) -> str:
    """A line a backend and dtype: kernels compiled for all its chips, and which takes most."""
    lines, every = [], [document for _, document in reports(folder)]
    for record in records():
        made = [
            (document["arch"], dtype, of_dtype)
            for document in every
            if document["schema"] == "fla-proof/1"
            and (document["backend"], document["kind"]) == (record.name, COMPILED)
            for one in document["implementations"]
            for dtype, of_dtype in one["by_dtype"].items()
        ]
        for dtype in dict.fromkeys(dtype for _, dtype, _ in made):
            some = [(arch, of_dtype) for arch, other, of_dtype in made if other == dtype]
            taken = [
                (most, name, arch) for arch, one in some for name, most in one["functions"].items()
            ]
            if not taken:
                continue
            chips, kernels = len({arch for arch, _ in some}), sum(one["kernels"] for _, one in some)
            most = (_most(taken, resource) for resource in RESOURCES)
            lines.append((f"`{record.name}`", dtype, str(chips), str(kernels), *most))
    return rows(("backend", "dtype", "chips", "kernels", "shared", "regs", "spill"), lines)


def _most(taken: Sequence[tuple[Mapping[str, int], str, str]], resource: str) -> str:
    most, name, arch = max(taken, key=lambda one: one[0][resource])
    return f"{most[resource]}: `{name}`, {arch}" if most[resource] else "0"


def reports(folder: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every report of a folder, by name.

    Raises:
        Incomplete: a file is no report, or one that says more than its cases do.
    """
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise Incomplete(f"{path.name} is not JSON: {error}") from error
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema == "fla-proof/1":
            if error := jsonschema.exceptions.best_match(_PROOFS.iter_errors(document)):
                raise Incomplete(f"{path.name}: {error.json_path}: {error.message[:300]}")
        elif schema == "fla-conformance-report/1":
            _check_report(path, document)
        else:
            raise Incomplete(f"{path.name} is neither a fla-proof/1 nor a conformance report")
        yield path, document


_PROOFS = jsonschema.Draft202012Validator(PROOF)


_COMPUTED = {
    Outcome.PASS,
    Outcome.XPASS,
    *(one for one in Outcome if one.value.startswith("fail.")),
}
"""How a case ends of which the device has computed something."""


def _check_report(path: Path, document: Mapping[str, Any]) -> None:
    """A run that computed nothing is no evidence, nor are levels that its cases do not give."""
    try:
        report = Report.read(path)
    except ReportError as error:
        raise Incomplete(str(error)) from error
    if not any(row.case and row.outcome in _COMPUTED for row in report.results):
        raise Incomplete(f"{path.name}: none of its cases ran, so that it is evidence of nothing")
    standings = report.standings
    names = ("implementation", "contract", "dtype", "arch", "level")
    reached = {tuple(getattr(one, name) for name in names) for one in standings}
    for one in document["summary"]:
        said = tuple(one[name] for name in names)
        if said not in reached:
            raise Incomplete(f"{path.name}: its cases do not give what its summary says: {said}")


def sightings(document: Mapping[str, Any]) -> Iterator[Seen]:
    """What a report adds to the table."""
    if document["schema"] == "fla-proof/1":
        made = document["implementations"]
        wrong = {_proven(one) for one in made if one["faults"] or not _is_current(one)}
        for what in dict.fromkeys(map(_proven, made)):
            if what not in wrong:
                yield Seen(document["backend"], document["arch"], *what, document["kind"])
        return
    name, arch = document["plugin"]["name"], document["host"]["arch"]
    current = [one for one in document["summary"] if _is_current(one)]
    for identity in dict.fromkeys(one["implementation"] for one in current):
        own = [one for one in current if one["implementation"] == identity]
        levels = lowest((one["dtype"], one["level"]) for one in own)
        variant = identity.partition("#")[2]
        yield Seen(name, arch, own[0]["contract"], variant, RUN, levels)


def _proven(one: Mapping[str, Any]) -> tuple[str, str]:
    """Contract and variant that a proof is of."""
    return one["contract"], one.get("variant", "")


def _is_current(one: Mapping[str, Any]) -> bool:
    """Whether a line of a report is of a contract as it is today."""
    contract = CONTRACTS.get(one["contract"])
    return contract is not None and contract.revision == one["revision"]


def lowest(levels: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """The level of each dtype that all implementations with it reached."""
    found: dict[str, str] = {}
    for dtype, level in levels:
        found[dtype] = min(level, found.get(dtype, level))
    return found


def _cell(seen: Iterable[Seen], arch: str) -> str:
    found = [one for one in seen if one.arch == arch or (one.arch, one.word) == (ANY_CHIP, LOWERED)]
    reached = lowest(pair for one in found for pair in one.levels.items())
    if levels := [f"{d} {level}" for d, level in sorted(reached.items()) if level > "L0"]:
        return f"{RUN} ({', '.join(levels)})"
    # Short of hardware each word is of another step: numbers, the compiler, the chip's own plan.
    said = [word for word in WORDS if word != RUN and word in {one.word for one in found}]
    return "; ".join(said) or DECLARED


def _line(document: Mapping[str, Any]) -> tuple[str, ...]:
    if document["schema"] != "fla-proof/1":
        plugin, host = document["plugin"], document["host"]
        toolchain = plugin["toolchain"]
        versions = {n: v for n, v in document["dists"].items() if n in ("torch", toolchain)}
        where = f"{host['name']} ({host['arch']})"
        date = document["started"].partition("T")[0]
        wrong = sum(Outcome(case["outcome"]) not in TOLERATED for case in document["cases"])
        what = f"{plugin['name']}: {RUN}" + (f", {wrong} faults" if wrong else "")
        dtypes = ", ".join(sorted({one["dtype"] for one in document["summary"]}))
        return what, where, dtypes, _listed(versions), date, *[""] * 6
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
    what_of = (what, document["arch"], _dtypes(made), versions, date)
    return *what_of, str(cases or ""), str(count or ""), *most, margin


def _dtypes(made: Sequence[Mapping[str, Any]]) -> str:
    """Dtypes of a proof, and of how many contracts where not of all."""
    found = Counter(dtype for one in made for dtype in one.get("by_dtype") or one["dtypes"])
    return ", ".join(
        dtype if count == len(made) else f"{dtype} ({count} of {len(made)})"
        for dtype, count in sorted(found.items())
    )


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
