"""The tables of figures say what was measured, and nothing where nothing was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import figures
from support import reports

from fla_backend_cuda import plugin
from fla_core.cli.calls.bench.rows import Row, document
from fla_core.dispatch.validity import find_row

MAIN = {**figures.MAIN, "HV": 16}
LONG = {**MAIN, "B": 1, "T": 32768}


def row(direction: str, ms: float | None, **changes: Any) -> Row:
    """A row of the gated delta rule."""
    plain = Row("chunk_gated_delta_rule", "", "ours", "0.1", MAIN, None, "bf16", direction)
    measured = replace(plain, status="ok", ms=ms, host_us=40.4, peak_mib=480.2)
    return replace(measured, **changes)


def written(folder: Path, *found: Row, taken: str = "2026-12-01 00:34:02 UTC") -> Path:
    """A file in the folder, which is returned."""
    told = document(found, {"device": "NVIDIA H200", "torch": "2.11.0"}) | {"taken": taken}
    name = f"{taken.replace(':', '')}.json"
    (folder / name).write_text(json.dumps(told), encoding="utf-8")
    return folder


def cells(table: str) -> list[list[str]]:
    """Every line below the heads."""
    lines = table.strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_line_an_operator(tmp_path: Path) -> None:
    gated = {"variant": "l2norm"}
    wrong = {**gated, "status": "wrong", "host_us": None, "peak_mib": None}
    folder = written(
        tmp_path,
        row("both", 1.4404),
        row("fwd", 0.2831),
        row("both", None, **wrong),
        row("fwd", 0.35, **gated),
        row("fwd", 0.9, shape=LONG),
        row("fwd", 0.3, shape={**MAIN, "H": 8}),
        row("fwd", 0.94, provider="sdpa", operator="softmax_attention"),
    )
    assert cells(figures.timings(folder)) == [
        ["`chunk_gated_delta_rule`", "0.283", "1.440", "480", "40", "40"],
        ["`chunk_gated_delta_rule:l2norm`", "0.350", "wrong", "", "40", ""],
    ]


def test_a_column_a_shape(tmp_path: Path) -> None:
    folder = written(
        tmp_path,
        row("fwd", 0.2831),
        row("both", 4.0, shape=LONG),
        row("fwd", 0.9, shape=LONG),
        row("fwd", 0.8, shape=LONG, lengths=(32760, 8)),
        row("fwd", 1.1, shape=LONG, variant="l2norm"),
        row("decode", 0.1, shape={**MAIN, "T": 1}),
    )
    table = figures.other_shapes(folder)
    assert table.splitlines()[0].split(" | ")[1:] == [
        "B1 T32768 H16 K128 V128",
        "B1 T32768 H16 K128 V128 N2 |",
    ]
    assert cells(table) == [
        ["`chunk_gated_delta_rule`", "0.900, 4.000", "0.800"],
        ["`chunk_gated_delta_rule:l2norm`", "1.100", ""],
    ]


def test_the_latest_run_that_took_a_call_has_its_row(tmp_path: Path) -> None:
    late, early = "2026-12-01 04:22:30 UTC", "2026-12-01 00:34:02 UTC"
    written(tmp_path, row("fwd", 0.2), row("both", 1.2), taken=late)
    written(tmp_path, row("fwd", 0.3), row("both", 1.3), row("fwd", 0.9, shape=LONG), taken=early)
    assert cells(figures.timings(tmp_path)) == [
        ["`chunk_gated_delta_rule`", "0.200", "1.200", "480", "40", "40"]
    ]
    assert cells(figures.other_shapes(tmp_path)) == [["`chunk_gated_delta_rule`", "0.900"]]
    assert figures.taken(tmp_path).splitlines() == [
        f"- NVIDIA H200, torch 2.11.0; {early}; 1 of 3 rows shown.",
        f"- NVIDIA H200, torch 2.11.0; {late}; 2 of 2 rows shown.",
    ]


def test_a_line_a_decode_step(tmp_path: Path) -> None:
    shape = {**MAIN, "T": 1}
    lost = {"shape": {**shape, "B": 64}, "status": "wrong", "host_us": None}
    folder = written(
        tmp_path,
        row("fwd", 0.2831),
        row("decode", 0.00676, shape=shape, graph_ms=0.0068),
        row("decode", None, **lost),
    )
    name, sizes = "`chunk_gated_delta_rule`", "T1 H16 K128 V128"
    assert cells(figures.steps(folder)) == [
        [name, f"B2 {sizes}", "0.0068", "0.0068", "40"],
        [name, f"B64 {sizes}", "wrong", "", ""],
    ]


def test_others_stand_beside_the_same_call_alone(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    theirs = {"provider": "peer", "version": "1.0"}
    written(
        tmp_path / "others",
        row("fwd", 0.317, **theirs),
        row("fwd", 0.5, **theirs, variant="l2norm"),
        row("both", None, **theirs, status="refused", peak_mib=None),
    )
    (others,) = (tmp_path / "others").iterdir()
    ours = written(tmp_path, row("fwd", 0.283), row("both", 1.44), row("fwd", 0.9, shape=LONG))
    shape = "B2 T8192 H16 K128 V128"
    pairs = ["0.317", "0.283", "refused", "1.440", "", "480"]
    assert cells(figures.peers(ours, others)) == [
        [*("`chunk_gated_delta_rule`", shape, "peer 1.0"), *pairs],
    ]


def test_others_of_one_run_stand_beside_what_that_run_took(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    others = written(tmp_path / "others", row("both", 2.1, provider="peer", version="1.0"))
    theirs = {"provider": "flash-qla", "version": "0.1.3"}
    anchor = {"provider": "sdpa", "operator": "softmax_attention"}
    written(tmp_path, row("both", 1.3), row("both", 2.0, **theirs), row("both", 3.8, **anchor))
    ours = written(tmp_path, row("both", 1.2), taken="2026-12-01 04:22:30 UTC")
    call = ["`chunk_gated_delta_rule`", "B2 T8192 H16 K128 V128"]
    assert cells(figures.peers(ours, next(others.iterdir()))) == [
        [*call, "peer 1.0", "", "", "2.100", "1.200", "480", "480"],
        [*call, "flash-qla 0.1.3, in one run", "", "", "2.000", "1.300", "480", "480"],
    ]
    assert cells(figures.timings(ours)) == [[call[0], "", "1.200", "480", "", "40"]]


def test_what_was_proven_on_the_card(tmp_path: Path) -> None:
    name = "conformance-cuda-sm90-linear_attn-hopper.json"
    report = json.loads((figures.PROOFS / name).read_text(encoding="utf-8"))
    # Checks of the plugin as a whole count for every implementation, others' checks do not.
    checks = [one["implementation"] for one in report["cases"]]
    own = checks.count("cuda:linear_attn#hopper") + checks.count("cuda")
    assert 0 < checks.count("cuda") < own == len(checks)
    report["cases"].append({**report["cases"][-1], "implementation": "cuda:kda#hopper"})
    report["started"] = "2026-12-01T10:00:00+00:00"
    (tmp_path / "a.json").write_text(json.dumps(report), encoding="utf-8")
    report["host"]["arch"] = "sm80"
    for line in report["summary"]:
        line["arch"] = "sm80"
    (tmp_path / "b.json").write_text(json.dumps(report), encoding="utf-8")
    line = ["`cuda:linear_attn#hopper`", str(own), "bfloat16 L4, float16 L4", "2026-12-01"]
    assert cells(figures.proven(tmp_path)) == [line]


def test_a_run_that_was_cut_proves_nothing(tmp_path: Path) -> None:
    name = "conformance-cuda-sm90-linear_attn-hopper.json"
    report = json.loads((figures.PROOFS / name).read_text(encoding="utf-8"))
    report["complete"] = False
    for line in report["summary"]:
        line["level"] = ""
    (tmp_path / "a.json").write_text(json.dumps(report), encoding="utf-8")
    assert cells(figures.proven(tmp_path)) == []


def test_what_the_plugin_calls_seen_was_proven() -> None:
    reached = {name.strip("`"): levels for name, _, levels, _ in cells(figures.proven())}
    validity, versions = tuple(plugin.fla_validity()), {"triton": "3.6.0"}
    declared = {f"cuda:{i.contract}#{i.variant}": i for i in plugin.fla_implementations()}

    def status(name: str, direction: str) -> str:
        row = find_row(validity, name, direction, figures.ARCH, versions)
        return "" if row is None else row.status

    for name, item in declared.items():
        highest = "L4" if item.backward is not None else "L1"
        proven = {level[-2:] for level in reached[name].split(", ")} == {highest}
        proven &= passed_up_to_l4(name, forward_only=item.backward is None)
        said = {status(name, "forward"), status(name, "backward")}
        assert said == ({"ok"} if proven else {"ok", "unverified"}), name


def passed_up_to_l4(name: str, forward_only: bool) -> bool:
    """Whether each dtype passed checks of every level, L2 apart if nothing has gradients."""
    asked = {"L0", "L1", "L3", "L4"} | (set() if forward_only else {"L2"})
    return all(
        {level for level, outcomes in one["counts"].items() if set(outcomes) == {"pass"}} == asked
        for _, report in reports(figures.PROOFS)
        if report["schema"] != "fla-proof/1" and report["host"]["arch"] == figures.ARCH
        for one in report["summary"]
        if one["implementation"] == name
    )
