"""``fla-kernels backends``."""

from __future__ import annotations

import json

import pytest
from command_line import Invoke

from fakes import domain, implementation, plugin
from fla_core.domain import AxisRange
from fla_core.plugins.record import PluginRecord


@pytest.fixture
def plugins() -> list[PluginRecord]:
    some = domain("l2norm", "gva", K=AxisRange(choices=(64, 128)))
    kda = implementation(
        "kda", "sm90", domain=some, arch=("sm90",), gradients=frozenset({"q", "k", "v", "g"})
    )
    forward_only = implementation("gla", "fast", backward=None)
    return [plugin("acme", kda, forward_only)]


def test_json(invoke: Invoke) -> None:
    data = json.loads(invoke("backends", "--json").stdout)
    assert [backend["name"] for backend in data["backends"]] == ["reference", "acme"]
    kda, gla = data["backends"][1]["operators"]
    assert kda["id"] == "acme:kda#sm90"
    assert kda["dtypes"] == ["float16", "bfloat16", "float32"]
    assert kda["axes"] == {"K": "64 | 128"}
    assert kda["arch"] == ["sm90"]
    assert kda["backward"] == ["g", "k", "q", "v"]
    assert "l2norm" in kda["raw"]
    assert "gate" in kda["lowered"]
    assert kda["refused"] == ["beta_v", "states"]
    assert set(kda["raw"]).isdisjoint(kda["lowered"])
    assert gla["backward"] is False


def test_text(invoke: Invoke) -> None:
    output = invoke("backends", "--op", "kda").stdout
    for text in ("acme", "kda#sm90", "K 64 | 128; arch sm90", "fp16, bf16, fp32", "g, k, q, v"):
        assert text in output
    assert "gla#fast" not in output


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_each_implementation_is_a_block_inside_of_its_plugin(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = [line.rstrip() for line in invoke("backends", "--op", "kda").stdout.splitlines()]
    assert max(map(len, lines)) <= columns
    there = lines.index("  kda#sm90")
    assert lines.index("acme") < there
    assert lines[there + 1].startswith("    forms ")


def test_unknown_operator(invoke: Invoke) -> None:
    result = invoke("backends", "--op", "kdb")
    assert result.exit_code == 2
    assert "kda" in result.stderr
