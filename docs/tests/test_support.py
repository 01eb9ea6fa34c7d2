"""The table of supported hardware says what reports say, and never more."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import support
import tables

from fla_conformance.case import Case
from fla_conformance.levels import LEVELS
from fla_conformance.report import Report
from fla_conformance.result import Outcome, Result


def proof(**changes: Any) -> dict[str, Any]:
    """A report of a driver that needs no device."""
    worst = {"shared": 1024, "registers": 64, "stack": 8}
    compiled = {"kernels": 7, "functions": {"chunk_states": worst}}
    one = {
        "contract": "simple_gla",
        "revision": 1,
        "dtypes": ["bfloat16"],
        **compiled,
        "by_dtype": {"bfloat16": compiled},
        "faults": [],
        "date": "2026-11-29",
    }
    return {
        "schema": "fla-proof/1",
        "kind": "compiled",
        "backend": "rocm",
        "arch": "gfx942",
        "versions": {"triton": "3.6.0"},
        "implementations": [one],
        **changes,
    }


def conformance(
    level: str, dtype: str = "bfloat16", implementation: str = "rocm:simple_gla#chunk"
) -> dict[str, Any]:
    """A report of the suite from a device on which one implementation reached a level."""
    contract = implementation.partition(":")[2].partition("#")[0]
    case = Case(contract, "fwd", dtype, "chunk", {"B": 1, "T": 16, "H": 2, "K": 8, "V": 8})
    passed = [name for name in LEVELS if name <= level]
    rows = [Result(name, implementation, name, Outcome.PASS, case.to_json()) for name in passed]
    if not passed:
        wrong = {"outcome": Outcome.FAIL_LAW, "case": case.to_json(), "detail": "wrong"}
        rows = [Result("a", implementation, "L0", **wrong)]
    text = dict.fromkeys(("distribution", "version", "card_hash", "description"), "")
    source = {"commit": "", "dirty": False}
    about = {**text, "targets": ["cuda"], "editable": False, "source": source}
    selection = {"op": "*", "budget": "ci", "only": "", "seed": 0, "isolated": False}
    header = {
        "suite": {"version": "", "core": "", "contracts_hash": ""},
        "plugin": {"name": "rocm", "toolchain": "triton", **about},
        "host": {
            **dict.fromkeys(("device", "driver", "os", "python", "torch"), ""),
            "name": "MI300X",
            "arch": "gfx942",
        },
        "dists": {"torch": "2.11.0", "triton": "3.6.0"},
        "selection": {**selection, "level": "L4"},
        "started": "2026-12-01T10:00:00+00:00",
        "seconds": 1.0,
        "argv": [],
        "complete": True,
    }
    document: dict[str, Any] = Report.of(header, rows, ()).to_json()
    return document


def cell(folder: Path, backend: str, chip: str, contract: str = "simple_gla") -> str:
    """What the table says of a contract on a chip; that stands in one line."""
    *lists, table = support.matrix(folder).split("\n\n")
    declared = next(line for line in lists if f"`{backend}`" in line.partition(" declare ")[0])
    assert f" `{contract}`" in declared
    found = []
    for line in table.strip().splitlines()[2:]:
        name, chips, what, seen = (word.strip() for word in line.strip("|").split("|"))
        named = what == support.EVERYTHING or f"`{contract}`" in what.split(", ")
        if name == f"`{backend}`" and chip in chips.split(", ") and named:
            found.append(seen)
    (word,) = found
    return word


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def put(folder: Path, **documents: dict[str, Any]) -> None:
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")


def test_nothing_seen_is_declared(folder: Path) -> None:
    assert cell(folder, "rocm", "gfx942") == "declared"


def test_a_proof_counts_for_its_chip_and_contract_alone(folder: Path) -> None:
    put(folder, one=proof())
    line = "| gfx942 | bfloat16 | triton 3.6.0 | 2026-11-29 |  | 7 | 1024 | 64 | 8 |  |"
    assert line in support.evidence(folder)
    assert cell(folder, "rocm", "gfx942") == "compiled"
    assert cell(folder, "rocm", "gfx950") == "declared"
    assert cell(folder, "rocm", "gfx942", "linear_attn") == "declared"


def greedy(dtype: str = "bfloat16", contract: str = "simple_gla") -> dict[str, Any]:
    """What a proof says of a contract whose kernels take more, compiled in one dtype."""
    (one,) = proof()["implementations"]
    takes = {"shared": 2048, "registers": 32, "stack": 0}
    compiled = {"kernels": 5, "functions": {"chunk_outputs": takes}}
    changes = {"contract": contract, "dtypes": [dtype], "by_dtype": {dtype: compiled}}
    return {**one, **compiled, **changes}


def test_kernels_of_all_chips_of_a_backend_are_counted_and_the_worst_is_named(folder: Path) -> None:
    put(folder, one=proof(), two=proof(arch="gfx950", implementations=[greedy()]))
    put(folder, three=proof(kind="interpreted"), four=conformance("L1"))
    worst = "2048: `chunk_outputs`, gfx950 | 64: `chunk_states`, gfx942 | 8: `chunk_states`, gfx942"
    assert f"| `rocm` | bfloat16 | 2 | 12 | {worst} |" in support.worst(folder)
    assert "`cuda`" not in support.worst(folder)


def test_what_kernels_of_each_dtype_take_is_told_apart(folder: Path) -> None:
    put(folder, one=proof(), two=proof(arch="gfx950", implementations=[greedy("float32")]))
    table = support.worst(folder)
    narrow = "1024: `chunk_states`, gfx942 | 64: `chunk_states`, gfx942 | 8: `chunk_states`, gfx942"
    assert f"| `rocm` | bfloat16 | 1 | 7 | {narrow} |" in table
    wide = "2048: `chunk_outputs`, gfx950 | 32: `chunk_outputs`, gfx950 | 0"
    assert f"| `rocm` | float32 | 1 | 5 | {wide} |" in table
    assert table.count("`rocm`") == 2


def test_dtypes_in_which_not_every_contract_was_seen_are_told(folder: Path) -> None:
    both = [*proof()["implementations"], greedy("float32", "linear_attn")]
    both[1]["by_dtype"] |= both[0]["by_dtype"]
    put(folder, one=proof(implementations=both), two=conformance("L3", "float16"))
    assert "| gfx942 | bfloat16, float32 (1 of 2) | triton" in support.evidence(folder)
    assert "| MI300X (gfx942) | float16 | torch" in support.evidence(folder)


def test_chips_and_implementations_of_which_the_same_was_seen_share_a_line(folder: Path) -> None:
    put(folder, one=proof(), two=proof(arch="gfx950"))
    table = support.matrix(folder)
    assert "| `rocm` | gfx942, gfx950 | `simple_gla` | compiled |" in table
    assert "| `rocm` | gfx90a, gfx1100, gfx1201, gfx1250 | everything | declared |" in table
    put(folder, two=proof(arch="gfx950", kind="interpreted"))
    assert "| `rocm` | gfx942 | `simple_gla` | compiled |" in support.matrix(folder)


def test_reports_that_say_the_same_share_a_line_of_the_evidence(folder: Path) -> None:
    put(folder, **{"compiled-a": proof(), "compiled-b-2": proof(arch="gfx950")})
    links = "[`a`](proofs/compiled-a.json), [`b-2`](proofs/compiled-b-2.json)"
    (line,) = support.evidence(folder).splitlines()[2:]
    assert line.startswith("| rocm: compiled | gfx942, gfx950 | bfloat16 | triton 3.6.0 |")
    assert line.endswith(f"| {links} |")
    put(folder, **{"compiled-b-2": proof(arch="gfx950", versions={"triton": "3.7.1"})})
    first, second = support.evidence(folder).splitlines()[2:]
    assert first.endswith("| [`compiled-a`](proofs/compiled-a.json) |")
    assert second.endswith("| [`compiled-b-2`](proofs/compiled-b-2.json) |")


def test_a_proof_with_a_fault_does_not_count(folder: Path) -> None:
    (faulty,) = proof()["implementations"]
    nothing = {"kernels": 0, "functions": {}}
    faulty |= {"faults": ["spills"], **nothing, "by_dtype": {"bfloat16": nothing}}
    put(folder, one=proof(implementations=[faulty]))
    assert "`rocm`" not in support.worst(folder)
    assert cell(folder, "rocm", "gfx942") == "declared"
    assert "rocm: compiled, 1 faults" in support.evidence(folder)


def test_what_has_no_gradients_has_a_line_and_proofs_of_its_own(folder: Path) -> None:
    (right,) = proof()["implementations"]
    right["contract"] = "kda"
    besides = {**right, "variant": "states"}
    put(folder, one=proof(implementations=[right]))
    assert cell(folder, "rocm", "gfx942", "kda") == "compiled"
    assert cell(folder, "rocm", "gfx942", "kda#states") == "declared"
    put(folder, one=proof(implementations=[{**right, "faults": ["spills"]}, besides]))
    assert cell(folder, "rocm", "gfx942", "kda") == "declared"
    assert cell(folder, "rocm", "gfx942", "kda#states") == "compiled"
    assert cell(folder, "rocm", "gfx942", "kda#steps") == "declared"


def test_what_ran_counts_for_its_variant_alone(folder: Path) -> None:
    ran = "run on hardware (bfloat16 L3)"
    put(folder, one=conformance("L3", implementation="rocm:kda#chunk"))
    assert cell(folder, "rocm", "gfx942", "kda") == ran
    assert cell(folder, "rocm", "gfx942", "kda#states") == "declared"
    put(folder, one=conformance("L3", implementation="rocm:kda#states"))
    assert cell(folder, "rocm", "gfx942", "kda") == "declared"
    assert cell(folder, "rocm", "gfx942", "kda#states") == ran


def test_a_report_from_a_device_drops_in(folder: Path) -> None:
    put(folder, one=proof(), two=conformance("L3"))
    assert cell(folder, "rocm", "gfx942") == "run on hardware (bfloat16 L3)"
    assert "MI300X (gfx942)" in support.evidence(folder)


def test_reports_of_several_implementations_count_together(folder: Path) -> None:
    put(folder, one=conformance("L4"), two=conformance("L2"), three=conformance("L3", "float32"))
    assert cell(folder, "rocm", "gfx942") == "run on hardware (bfloat16 L2, float32 L3)"
    put(folder, four=conformance("", "float32"))
    assert cell(folder, "rocm", "gfx942") == "run on hardware (bfloat16 L2)"


def test_a_run_that_reached_no_level_does_not_count(folder: Path) -> None:
    put(folder, one=conformance(""), two=conformance("L0", "float16"))
    assert cell(folder, "rocm", "gfx942") == "declared"


def test_faults_of_a_run_are_counted(folder: Path) -> None:
    put(folder, one=conformance(""))
    assert "| rocm: run on hardware, 1 faults | MI300X (gfx942) |" in support.evidence(folder)


@pytest.mark.parametrize("ended", ["not_executed", "refused.declared", "crash", "timeout"])
@pytest.mark.parametrize("table", [support.matrix, support.evidence, support.worst])
def test_a_run_that_computed_nothing_is_refused(
    folder: Path, table: Callable[[Path], str], ended: str
) -> None:
    nothing = conformance("L0")
    row = nothing["cases"][0]
    row |= {"outcome": ended, "detail": "it did not run"}
    card = {
        **row,
        "id": "plugin/card",
        "outcome": "pass",
        "case": {},
        "contract": "",
        "law": "card",
    }
    put(folder, one=nothing | {"cases": [card, row], "summary": []})
    with pytest.raises(tables.Incomplete, match=r"one\.json: none of its cases ran"):
        table(folder)
    put(folder, one=nothing | {"cases": [], "summary": []})
    with pytest.raises(tables.Incomplete, match=r"one\.json: none of its cases ran"):
        table(folder)


def test_code_for_no_chip_in_particular_stands_beside_what_was_compiled(folder: Path) -> None:
    lowered = proof(backend="xpu", arch="host", kind="lowered code run on CPU")
    put(folder, one=lowered, two=proof(backend="xpu", arch="pvc"))
    assert cell(folder, "xpu", "pvc") == "lowered code run on CPU; compiled"
    assert cell(folder, "xpu", "bmg") == "lowered code run on CPU"


def test_what_was_interpreted_stands_beside_what_was_compiled(folder: Path) -> None:
    interpreted = proof(kind="interpreted")
    (one,) = interpreted["implementations"]
    for name in ("kernels", "functions", "by_dtype"):
        del one[name]
    one |= {"cases": 5, "worst_margin": 0.25}
    put(folder, one=interpreted)
    assert cell(folder, "rocm", "gfx942") == "interpreted"
    line = "| gfx942 | bfloat16 | triton 3.6.0 | 2026-11-29 | 5 |  |  |  |  | 0.25 |"
    assert line in support.evidence(folder)
    put(folder, two=proof())
    assert cell(folder, "rocm", "gfx942") == "compiled; interpreted"
    put(folder, three=conformance("L1"))
    assert cell(folder, "rocm", "gfx942") == "run on hardware (bfloat16 L1)"


def test_other_files_are_refused(folder: Path) -> None:
    put(folder, one={"schema": "else"})
    with pytest.raises(tables.Incomplete, match=r"one\.json is neither"):
        support.matrix(folder)


def changed(document: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """A report with one thing put in place of another."""
    *path, last = (int(word) if word.isdigit() else word for word in place.split("."))
    inner: Any = document
    for step in path:
        inner = inner[step]
    inner[last] = value
    return document


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[1]", b'{"schema": 1}'])
def test_what_is_no_report_at_all_is_refused(folder: Path, text: bytes) -> None:
    (folder / "one.json").write_bytes(text)
    with pytest.raises(tables.Incomplete, match=r"one\.json is n"):
        support.matrix(folder)


@pytest.mark.parametrize(
    ("document", "place", "value"),
    [
        (proof(), "kind", "run on hardware"),
        (proof(), "kind", "blessed"),
        (proof(), "implementations", []),
        (proof(), "implementations.0", {"contract": "simple_gla", "faults": []}),
        (proof(), "implementations.0.faults", None),
        (proof(), "implementations.0.functions", {"chunk_states": {"shared": 1}}),
        (proof(), "implementations.0.dtypes", []),
        (proof(), "implementations.0.by_dtype", {"bfloat16": {"kernels": 7}}),
        (proof(), "implementations.0.by_dtype", None),
        (conformance("L2"), "plugin", {}),
        (conformance("L2"), "cases", None),
        (conformance("L2"), "summary.0.level", "L3"),
        (conformance("L2"), "summary.0.level", "L9"),
        (conformance("L2"), "summary.0.dtype", "float32"),
        (conformance("L2"), "summary.0.contract", "kda"),
        (conformance("L2"), "host.arch", "gfx950"),
        (conformance("L2"), "complete", False),
        (conformance("L2"), "cases.1.level", "L0"),
    ],
)
def test_a_report_that_is_broken_or_says_more_than_its_cases_is_refused(
    folder: Path, document: dict[str, Any], place: str, value: Any
) -> None:
    put(folder, one=document)
    support.matrix(folder)
    put(folder, one=changed(document, place, value))
    with pytest.raises(tables.Incomplete, match=r"one\.json"):
        support.matrix(folder)


@pytest.mark.parametrize(
    ("document", "place", "value"),
    [
        (proof(), "arch", "gfx9999"),
        (proof(), "arch", "host"),
        (proof(), "backend", "acme"),
        (proof(), "implementations.0.contract", "no_such_contract"),
        (proof(), "implementations.0.revision", 0),
        (conformance("L2"), "summary.0.revision", 0),
    ],
)
def test_what_is_of_another_chip_or_revision_does_not_count(
    folder: Path, document: dict[str, Any], place: str, value: Any
) -> None:
    put(folder, one=changed(document, place, value))
    assert cell(folder, "rocm", "gfx942") == "declared"
    assert cell(folder, "rocm", "gfx950") == "declared"
