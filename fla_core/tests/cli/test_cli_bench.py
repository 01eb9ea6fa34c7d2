"""``fla-kernels bench``: right answers have a speed, wrong ones have none."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
import wrong
from command_line import Invoke

import fla_core
from fakes import implementation, plugin
from fla_core.cli.bench import _words
from fla_core.cli.calls.bench import chart, compare, fresh, recipes, rows, timers
from fla_core.cli.calls.bench.rows import Row
from fla_core.plugins.record import PluginRecord

SCHEMA = json.loads(Path(rows.__file__).with_name("schema.json").read_text())
SHAPE = ("--shape", "1,70,2,8,8", "--device", "cpu", "--budget", "0.001")

PROVIDERS = {
    "right_one": "from fla_core.ops import chunk_gla, fused_recurrent_gla",
    "wrong_one": """
        from fla_core import ops
        def chunk_gla(*args, **kwargs):
            o, state = ops.chunk_gla(*args, **kwargs)
            return o * 1.02, state
    """,
    "without_decay_gradient": """
        from fla_core import ops
        def chunk_gla(q, k, v, g, **kwargs):
            return ops.chunk_gla(q, k, v, g.detach(), **kwargs)
    """,
    "wrong_at_length": """
        from fla_core import ops
        def chunk_gla(q, *args, **kwargs):
            o, state = ops.chunk_gla(q, *args, **kwargs)
            return (o * 1.02 if q.shape[1] == 70 else o), state
    """,
    "raising": """
        def chunk_gla(*args, **kwargs):
            raise RuntimeError("launch failed")
    """,
    "refusing": """
        def chunk_gla(*args, **kwargs):
            raise NotImplementedError("not on this chip")
    """,
    "without_empty_sequences": """
        from fla_core import ops
        def chunk_gla(*args, cu_seqlens=None, **kwargs):
            if cu_seqlens is not None and (cu_seqlens.diff() == 0).any():
                raise ValueError("invalid sequence lengths")
            return ops.chunk_gla(*args, cu_seqlens=cu_seqlens, **kwargs)
    """,
    "broken": "raise OSError('libchip.so is missing')",
}


def right_plugin() -> PluginRecord:
    """A plugin that answers as the reference does."""
    chunk = implementation(forward=wrong.right, backward=wrong.backward, strided=True)
    return plugin("acme", chunk, targets=("cpu",))


@pytest.fixture
def providers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules with operators of these names."""
    from textwrap import dedent

    for name, code in PROVIDERS.items():
        (tmp_path / f"{name}.py").write_text(dedent(code))
    monkeypatch.syspath_prepend(tmp_path)


def bench(invoke: Invoke, *words: str, code: int = 0) -> list[dict[str, Any]]:
    """Rows of a run without those of the anchor; the document obeys its schema."""
    result = invoke("bench", *words, *SHAPE, "--json")
    assert result.exit_code == code, result.output
    document = json.loads(result.stdout)
    jsonschema.validate(document, SCHEMA)
    return [row for row in document["rows"] if row["provider"] != "sdpa"]


def test_two_providers_on_the_same_call(invoke: Invoke, providers: None) -> None:
    words = ("gla", "--provider", "ours", "--provider", "right_one")
    found = bench(invoke, *words)
    assert [(row["provider"], row["direction"], row["status"]) for row in found] == [
        ("ours", "fwd", "ok"),
        ("right_one", "fwd", "ok"),
        ("ours", "both", "ok"),
        ("right_one", "both", "ok"),
    ]
    assert {row["implementation"] for row in found} == {
        "reference:gla#chunk",
        "right_one.chunk_gla",
    }
    assert all(set(row["errors"]) == {"dense", "packed", "slice"} for row in found)
    assert all(max(row["errors"].values()) <= row["bound"] for row in found)


def test_others_need_not_take_an_empty_sequence(invoke: Invoke, providers: None) -> None:
    (found,) = bench(invoke, "gla", "--provider", "without_empty_sequences", "--direction", "fwd")
    assert found["status"] == "ok"
    assert set(found["errors"]) == {"dense", "packed", "slice"}


def test_a_device_is_current_while_it_is_timed(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = []

    @contextmanager
    def guard(device: torch.device) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    def timed(*_: object) -> float:
        assert current == [torch.device("cpu")]
        return 1.0

    monkeypatch.setattr("fla_core.cli.calls.bench.runner.device_guard", guard)
    monkeypatch.setattr("fla_core.cli.calls.bench.timers.milliseconds", timed)
    (found,) = bench(invoke, "gla", "--direction", "fwd")
    assert found["ms"] == 1.0
    assert current == []


@pytest.mark.parametrize("plugins", [[right_plugin()]])
def test_the_definition_is_no_other_implementation(invoke: Invoke) -> None:
    found = bench(invoke, "gla", "--backend", "acme")
    assert [(row["direction"], row["status"]) for row in found] == [("fwd", "ok"), ("both", "ok")]
    assert {row["implementation"] for row in found} == {"acme:gla#chunk"}


@pytest.mark.parametrize(
    ("provider", "status", "text"),
    [
        ("wrong_one", "wrong", "dense o "),
        ("without_decay_gradient", "wrong", "dense d gk "),
        ("wrong_at_length", "wrong", "slice o "),
        ("raising", "error", "RuntimeError: launch failed"),
    ],
)
def test_no_speed_of_what_is_wrong(
    invoke: Invoke, providers: None, provider: str, status: str, text: str
) -> None:
    (row,) = bench(invoke, "gla", "--provider", provider, "--direction", "both", code=1)
    assert (row["status"], row["ms"]) == (status, None)
    assert row["text"].startswith(text)


@pytest.mark.parametrize(
    ("operator", "provider", "status", "text"),
    [
        ("gla", "refusing", "refused", "not on this chip"),
        ("kda", "right_one", "missing", "right_one has no chunk_kda"),
    ],
)
def test_what_is_not_offered(
    invoke: Invoke, providers: None, operator: str, provider: str, status: str, text: str
) -> None:
    (row,) = bench(invoke, operator, "--provider", provider, "--direction", "fwd")
    assert (row["status"], row["text"]) == (status, text)


@pytest.mark.parametrize(
    ("provider", "status", "text", "code"),
    [
        ("not_installed", "missing", "ModuleNotFoundError: No module named 'not_installed'", 0),
        ("broken", "error", "OSError: libchip.so is missing", 1),
        ("raising", "error", "RuntimeError: launch failed", 1),
    ],
)
def test_one_provider_stops_no_other(
    invoke: Invoke, providers: None, provider: str, status: str, text: str, code: int
) -> None:
    words = ("gla", "--provider", provider, "--provider", "right_one", "--direction", "fwd")
    bad, good = bench(invoke, *words, code=code)
    assert (bad["provider"], bad["status"], bad["text"]) == (provider, status, text)
    assert (good["provider"], good["status"]) == ("right_one", "ok")


def test_every_operator_and_variant_is_right(invoke: Invoke) -> None:
    found = bench(invoke, "chunk_*:*", "--direction", "both")
    titles = {f"{row['operator']}:{row['variant']}".rstrip(":") for row in found}
    assert {"chunk_retention", "chunk_lightning_attn", "chunk_linear_attn:normalize"} <= titles
    assert {"chunk_kda:gate", "chunk_gated_delta_rule:l2norm", "chunk_gla"} <= titles
    assert {row["status"] for row in found} == {"ok"}


def test_packed_and_one_token(invoke: Invoke) -> None:
    words = ("kda", "--varlen", "3", "--decode", "--direction", "fwd")
    packed, step = bench(invoke, *words)
    assert packed["lengths"] == list(recipes.mixed_lengths(70, 3))
    assert sum(packed["lengths"]) == 70
    assert (step["operator"], step["direction"], step["shape"]["T"]) == (
        "fused_recurrent_kda",
        "decode",
        1,
    )
    assert set(step["errors"]) == {"small", "slice"}


def test_softmax_attention_is_the_anchor(invoke: Invoke) -> None:
    result = invoke("bench", "gla", "--direction", "both", *SHAPE, "--json")
    anchor = json.loads(result.stdout)["rows"][-1]
    assert (anchor["operator"], anchor["provider"]) == ("softmax_attention", "sdpa")
    assert anchor["status"] == "ok"
    assert set(anchor["errors"]) == {"dense", "slice"}


def test_first_calls_run_in_their_own_process(invoke: Invoke) -> None:
    (row,) = bench(invoke, "gla", "--direction", "fwd", "--first")
    assert row["first_s"] > 0


def test_what_torch_loads_for_any_gradient_is_not_in_a_first_call() -> None:
    code = """
import sys
from fla_core.cli.calls.bench import fresh
clock, loaded = fresh.time.perf_counter, []
fresh.time.perf_counter = lambda: loaded.append("sympy" in sys.modules) or clock()
sizes = {"B": 1, "T": 16, "H": 1, "K": 8, "V": 8}
asked = {"provider": "ours", "backend": "reference", "operator": "chunk_gla", "variant": "",
         "sizes": sizes, "lengths": None, "dtype": "float32", "direction": "both", "device": "cpu"}
assert "sympy" not in sys.modules
fresh.measure(asked)
print(loaded[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["True"], done.stderr


def test_a_first_call_that_fails_is_told(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "MODULE", "fla_core.no_such_module")
    (row,) = bench(invoke, "gla", "--direction", "fwd", "--first", code=1)
    assert (row["status"], row["ms"]) == ("error", None)
    assert "FirstCallError: the fresh process ended with status 1" in row["text"]
    assert "No module named fla_core.no_such_module" in row["text"]


def test_stored_figures_stand_beside(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    words = ("bench", "gla", "--direction", "fwd", *SHAPE)
    assert invoke(*words, "--out", str(path)).exit_code == 0
    document = json.loads(path.read_text())
    document["host"]["device"] = "a chip"
    document["rows"][0] |= {"provider": "peer", "ms": 123.456, "host_us": 77.0}
    path.write_text(json.dumps(document))
    png = tmp_path / "chart.png"
    result = invoke(*words, "--beside", str(path), "--png", str(png))
    assert result.exit_code == 0, result.output
    assert "peer (stored)" in result.stdout
    assert "123.456" in result.stdout
    assert "; host us: what a call keeps the host busy for" in result.stdout
    assert "host" not in invoke(*words).stdout
    assert "peers.json: taken" in result.stdout
    assert "on a chip, torch" in result.stdout
    assert png.read_bytes().startswith(b"\x89PNG")


def test_against_a_file(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    words = ("bench", "gla", "--direction", "fwd", *SHAPE)
    invoke(*words, "--out", str(path))
    document = json.loads(path.read_text())
    document["rows"][0]["ms"] *= 1000
    path.write_text(json.dumps(document))
    result = invoke(*words, "--against", str(path), "--json")
    found = json.loads(result.stdout)
    jsonschema.validate(found, SCHEMA)
    (change,) = found["against"]["calls"]
    assert change["operator"] == "chunk_gla"
    assert change["ratio"] == pytest.approx(change["before_ms"] / change["after_ms"])
    assert change["ratio"] > 1
    table = invoke(*words, "--against", str(path))
    assert "Against before.json" in table.stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository whose core has a bench of its own, with stored figures."""
    document = rows.document([_row("ours", 9.0)], {"device": "then", "torch": "1"})
    package = tmp_path / "repository" / "fla_core" / "src" / "fla_core"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    told = json.dumps(json.dumps(document))
    code = f"import sys\nprint({told} if 'gla' in sys.argv else 'no gla')\n"
    (package / "cli.py").write_text(code)
    root = tmp_path / "repository"
    named = ("-c", "user.name=n", "-c", "user.email=e")
    for words in (("init", "-q"), ("add", "."), (*named, "commit", "-q", "-m", "first")):
        subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)
    monkeypatch.chdir(root)
    return root


def test_against_a_revision(repository: Path) -> None:
    found = compare.other("HEAD", ["gla", "--device", "cpu"])
    assert (found.name, found.host["device"]) == ("HEAD", "then")
    (change,) = compare.changes(found.rows, [_row("ours", 3.0), _row("peer", 1.0)])
    assert change.ratio == 3.0
    listed = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True)
    assert len(listed.stdout.splitlines()) == 1


def test_a_revision_that_has_no_bench(repository: Path) -> None:
    with pytest.raises(compare.RevisionError, match="status 0 and no result: no gla"):
        compare.other("HEAD", ["kda"])


def test_the_revision_is_asked_the_same() -> None:
    asked = "gla --against HEAD~1 --shape 1,2,3,4,5 --json --png=x.png --out o.json --decode"
    argv = ["fla-kernels", "bench", *asked.split()]
    assert _words(argv) == ["gla", "--shape", "1,2,3,4,5", "--decode"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("glu", "close      gla"),
        ("gla:gate", "'gate'"),
        ("kda:norm", "'*', 'gate'"),
        ("gla --shape 1,2,3", "positive sizes B,T,H,K,V"),
        ("gla --provider no.such.module", "ours, fla, flash-qla, sdpa or a module that can"),
        ("gla --provider broken", "OSError: libchip.so is missing"),
        ("gla --provider broken --provider no.such.module", "OSError: libchip.so is missing"),
        ("gla --direction back", "fwd | both"),
        ("gla --varlen 71 --shape 1,70,2,8,8", "a number of sequences in 1..70"),
        ("gla --varlen -1", "a number of sequences"),
        ("gla --beside nowhere.json", "argument 'beside' is not valid"),
        ("gla --against nowhere.json", "argument 'against' is not valid"),
        ("gla --against nowhere.json", "nowhere.json: FileNotFoundError"),
        ("gla --against no-such-revision", "or a git revision"),
        ("gla --dtype int8", "fp16 | bf16 | fp32 | fp64"),
        ("gla --device tpu", "a device of this machine"),
        ("gla --budget 0", "a positive number of seconds"),
        ("gla --budget nan", "a positive number of seconds"),
        ("gla --out /", "/: is a folder"),
        ("gla --out nowhere/x.json", "nowhere/x.json: there is no folder nowhere"),
        ("gla --png nowhere/x.png", "nowhere/x.png: there is no folder nowhere"),
        ("gla --png x.chart", "--png x.chart: expected a file that ends in"),
    ],
)
def test_bad_questions(invoke: Invoke, providers: None, words: str, text: str) -> None:
    device = () if "--device" in words else ("--device", "cpu")
    result = invoke("bench", *words.split(), *device)
    assert result.exit_code == 2
    assert text in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"schema": "fla-bench/1", "taken": "", "host": {}, "rows": [{"errors": []}]}',
        '{"schema": "fla-bench/1", "taken": "", "host": [1], "rows": []}',
        '{"schema": "fla-bench/1", "taken": "", "host": {}, "rows": {"a": 1}}',
    ],
)
@pytest.mark.parametrize("option", ["--beside", "--against"])
def test_files_that_no_bench_wrote(invoke: Invoke, tmp_path: Path, text: str, option: str) -> None:
    path = tmp_path / "figures.json"
    path.write_text(text)
    result = invoke("bench", "gla", *SHAPE, option, str(path))
    assert result.exit_code == 2
    assert "a file that bench wrote (fla-bench/1)" in result.stderr


def test_a_file_that_must_not_be_written(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    result = invoke("bench", "gla", *SHAPE, "--out", str(tmp_path / "x.json"))
    assert result.exit_code == 2
    assert "x.json: must not be written" in result.stderr


def test_a_chart_needs_matplotlib(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = invoke("bench", "gla", *SHAPE, "--png", "chart.png")
    assert result.exit_code == 2
    assert "pip install matplotlib" in result.stderr


def test_a_chart_needs_figures(tmp_path: Path) -> None:
    with pytest.raises(chart.ChartError, match="no operator has a speed"):
        chart.draw([_row("ours", None)], tmp_path / "chart.png", "")


def test_a_slow_call_is_timed_more_than_once_on_a_cpu() -> None:
    pauses = iter((0.0, 0.3, 0.0, 0.0))

    def call() -> None:
        time.sleep(0.02 + next(pauses, 0.0))

    # The first run finds out how many fill a sample; the disturbed one is not the answer.
    assert 20 <= timers.milliseconds(call, torch.device("cpu"), 0.01) < 150


def test_lengths_are_mixed() -> None:
    lengths = recipes.mixed_lengths(32768, 32)
    assert (sum(lengths), len(lengths), min(lengths) > 0) == (32768, 32, True)
    assert max(lengths) > 5 * min(lengths)


def test_rows_come_back_as_they_were() -> None:
    row = _row("ours", 1.0)
    row.errors = {"dense": float("inf")}
    assert Row.of(json.loads(json.dumps(row.to_json()))) == row


def test_the_stored_peers_obey_the_schema() -> None:
    folder = Path(fla_core.__file__).parents[3] / "docs" / "benchmarks"
    if not folder.exists():
        pytest.skip("an installed package has no docs")
    files = sorted(folder.glob("*.json"))
    assert files
    for path in files:
        jsonschema.validate(json.loads(path.read_text()), SCHEMA)
        assert rows.read(path).rows


def _row(provider: str, ms: float | None) -> Row:
    shape = {"B": 1, "T": 2, "H": 1, "K": 8, "V": 8}
    return Row("chunk_gla", "", provider, "1", shape, None, "fp32", "fwd", ms=ms)
