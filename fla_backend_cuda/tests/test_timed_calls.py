"""The calls that the benchmarks time: every family, at every shape."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from fla_core.cli.calls import measure
from fla_core.cli.calls.bench import rows as stored
from fla_core.cli.calls.bench import runner
from fla_core.cli.calls.bench.golds import Golds
from fla_triton.declared import ROWS

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import calls
import check_and_time
import first_calls
import grid_share
import memcheck

TINY = {"tiny": (1, 70, 2, 2, 16, 16)}


@pytest.mark.parametrize("contract", [row.contract for row in ROWS])
def test_every_family_is_timed_packed_and_dense(contract: str) -> None:
    dense = list(calls.workloads(contract, ["main"], torch.bfloat16))
    packed = list(calls.workloads(contract, ["varlen"], torch.bfloat16))
    assert dense
    assert [w.recipe.title for w in packed] == [w.recipe.title for w in dense]
    assert {w.lengths for w in dense} == {None}
    for workload in packed:
        assert len(workload.lengths) == 32
        assert sum(workload.lengths) == workload.sizes["T"] == 32768
    assert [w.sizes["B"] for w in calls.steps(contract, torch.bfloat16)] == [1, 64]


def test_a_proof_that_does_not_end_is_ended_with_what_it_started() -> None:
    sleeper = "import time; time.sleep(60)"
    program = (
        f"import subprocess, sys; print('begun', flush=True);"
        f" subprocess.run([sys.executable, '-c', {sleeper!r}])"
    )
    start = time.monotonic()
    process = check_and_time._started([sys.executable, "-c", program], {})
    assert process.stdout is not None
    text, late = check_and_time.ended(process, 5.0)
    assert text == "begun\n"
    assert "did not end" in late
    assert time.monotonic() - start < 30  # its child held the pipe open, and is gone too


def test_a_proof_that_ends_is_not_late() -> None:
    process = check_and_time._started([sys.executable, "-c", "print('done')"], {})
    assert check_and_time.ended(process, 60.0) == ("done\n", "")
    assert process.returncode == 0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What two processes would be asked for: one size of one contract on the CPU."""
    monkeypatch.setattr(calls, "SHAPES", TINY)
    monkeypatch.setattr(calls, "DECODED", (1,))
    (tmp_path / grid_share.GOLDS).mkdir()
    return {
        "plugin": "reference",
        "variant": "",
        "device": "cpu",
        "ops": ["simple_gla"],
        "budget": "1",
        "shapes": ["tiny"],
        "decode": True,
        "folder": str(tmp_path),
    }


def test_what_is_timed_is_compared_with_what_was_evaluated_ahead(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid_share.main(asked)
    done = (tmp_path / grid_share.RESULTS).read_text().splitlines()
    assert {json.loads(line)["outcome"] for line in done} == {"pass"}
    grid_share.main(asked)  # nothing is left to claim
    assert (tmp_path / grid_share.RESULTS).read_text().splitlines() == done

    def evaluated_again(*args: object) -> None:
        raise AssertionError

    monkeypatch.setattr(measure, "gold", evaluated_again)
    options = Namespace(**asked, profile=False)
    golds = Golds(tmp_path / grid_share.GOLDS)
    rows = list(check_and_time.timed(options, ["simple_gla"], golds))
    assert [row.provider for row in rows[:3]] == ["sdpa", "sdpa", "ours"]
    told = [(row.title, row.direction, row.status) for row in rows]
    assert told == [
        ("softmax_attention", "both", "ok"),
        ("softmax_attention", "fwd", "ok"),
        *(
            (title, direction, "ok")
            for title in ("chunk_simple_gla", "chunk_retention")
            for direction in ("both", "fwd")
        ),
        ("fused_recurrent_simple_gla", "decode", "ok"),
    ]


def test_rows_are_kept_as_they_come(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    options = Namespace(json=file, device="cpu")
    (workload,) = calls.workloads("gla", ["main"], torch.bfloat16)
    rows = [runner.blank(workload, "ours", "", direction) for direction in ("fwd", "both")]
    for count in range(3):
        check_and_time.keep(options, rows[:count], {"gla": True})
        assert list(tmp_path.iterdir()) == [file]
        assert stored.read(file).rows == tuple(rows[:count])


def test_what_is_compared_is_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SHAPES", {**TINY, "longer": (1, 90, 2, 2, 16, 16)})
    timed = calls.timed_calls(["gla"], ["tiny", "longer"], False, torch.bfloat16)
    called = grid_share._called(timed)
    told = [(workload.text, direction) for workload, direction in called]
    assert told == [
        (text, direction)
        for direction in ("both", "fwd")
        for text in (
            "B2 T80 H2 K16 V16",
            "B1 T80 H2 K16 V16 N3",
            "B1 T70 H2 K16 V16",
            "B1 T90 H2 K16 V16",
        )
    ]


def test_each_thing_is_claimed_once(tmp_path: Path) -> None:
    first = grid_share._claimed("abcd", tmp_path, "letter")
    assert next(first) == "a"
    assert list(grid_share._claimed("abcd", tmp_path, "letter")) == ["b", "c", "d"]
    assert list(first) == []
    assert list(grid_share._claimed("ab", tmp_path, "other")) == ["a", "b"]


def test_first_calls_tell_of_seconds_and_of_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SHAPES", TINY)
    listed = first_calls.wanted("reference", "cpu", ["chunk_gla", "chunk_kda:*"], "tiny")
    assert [one.recipe.title for one in listed] == ["chunk_gla", "chunk_kda:gate"]
    told = first_calls.first_calls(listed[:1], "reference", torch.device("cpu"), 2)
    ((workload, seconds, trouble),) = told
    assert workload is listed[0]
    assert seconds is not None
    assert seconds > 0
    assert trouble == ""
    ((_, seconds, trouble),) = first_calls.first_calls(listed[:1], "none", torch.device("cpu"), 2)
    assert seconds is None
    assert "status 1" in trouble


@pytest.mark.parametrize("planted", [True, False])
def test_what_is_watched_was_compiled_before(
    planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands in for the programs: each says at once what the real one would in the end."""
    begun: list[tuple[bool, str, str]] = []
    started = check_and_time._started

    def at_once(command: list[str], more: dict[str, str]) -> check_and_time.Running:
        program = next(Path(word).stem for word in command if word.endswith(".py"))
        proofs = command[-1] if program == "proofs" else program
        begun.append((command[0] == "checker", proofs, more.get("TRITON_CACHE_DIR", "")))
        code = "print('ERROR SUMMARY: 0 errors')"
        if program == "stray" and planted:
            code = "import sys; print('Invalid __global__ write'); sys.exit(9)"
        return started([sys.executable, "-c", code], {})

    monkeypatch.setattr(check_and_time, "_started", at_once)
    monkeypatch.setattr(memcheck, "sanitizer", lambda: "checker")
    options = Namespace(
        proofs=["lengths", "memcheck"], limit=60.0, plugin="cuda", variant="", device="cuda:0"
    )
    assert check_and_time.prove(options, ["gla", "kda"]) is planted
    caches = [cache for *_, cache in begun]
    assert [one[:2] for one in begun] == [
        (False, "lengths"),
        (False, "lengths"),
        (False, "odd"),
        (False, "odd"),
        (True, "stray"),
        (True, "odd"),
        (True, "odd"),
    ]
    assert caches[2] == caches[3] == caches[5] == caches[6]
    assert len({caches[0], caches[1], caches[2]}) == 3  # counting starts in empty caches


def test_the_anchor_has_the_first_dense_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        calls, "SHAPES", {"grouped": (2, 80, 2, 4, 16, 16), "packed": (1, 90, 2, 2, 16, 16)}
    )
    monkeypatch.setattr(calls, "PACKED", {"packed": 3})
    timed = calls.timed_calls(["kda"], ["packed", "grouped"], True, torch.bfloat16)
    told = [(workload.text, direction) for workload, direction in calls.anchors(timed)]
    assert told == [("B2 T80 H2 K16 V16", "both"), ("B2 T80 H2 K16 V16", "fwd")]
    packed = calls.timed_calls(["kda"], ["packed"], True, torch.bfloat16)
    assert calls.anchors(packed) == []
