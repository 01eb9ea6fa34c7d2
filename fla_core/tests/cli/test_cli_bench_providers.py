"""Packages with operators of their own beside ours: told what they take, and asked nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from command_line import Invoke, leftover
from test_cli_bench import bench

FLASH_QLA = """
    from fla_core import ops

    __version__ = "0.1.3"

    def chunk_gated_delta_rule(
        q, k, v, g, beta, scale=None, initial_state=None, output_final_state=True, cu_seqlens=None
    ):
        o, state = ops.chunk_gated_delta_rule(
            q, k, v, g, beta, scale=scale, initial_state=initial_state,
            output_final_state=output_final_state, cu_seqlens=cu_seqlens, backend="reference",
        )
        return o * FACTOR, state
"""
WORDS = ("--provider", "ours", "--provider", "flash-qla")


@pytest.fixture
def flash_qla(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[None]:
    """A package of that name with the documented signature."""
    code = dedent(FLASH_QLA).replace("FACTOR", str(getattr(request, "param", 1)))
    (tmp_path / "flash_qla.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flash_qla", raising=False)
    yield
    sys.modules.pop("flash_qla", None)


@pytest.mark.usefixtures("flash_qla")
def test_a_package_is_timed_beside_ours(invoke: Invoke) -> None:
    found = bench(invoke, "chunk_gated_delta_rule", *WORDS, "--direction", "both")
    assert [(row["provider"], row["status"]) for row in found] == [
        ("ours", "ok"),
        ("flash-qla", "ok"),
    ]
    theirs = found[1]
    assert theirs["implementation"] == "flash_qla.chunk_gated_delta_rule"
    assert theirs["version"] == "0.1.3"
    assert theirs["ms"] > 0


@pytest.mark.usefixtures("flash_qla")
def test_a_leftover_without_metadata_has_no_version(invoke: Invoke, tmp_path: Path) -> None:
    leftover(tmp_path, "flash_qla")
    words = ("chunk_gated_delta_rule", "--provider", "flash-qla", "--direction", "fwd")
    (theirs,) = bench(invoke, *words)
    assert (theirs["status"], theirs["version"]) == ("ok", "0.1.3")


@pytest.mark.parametrize("flash_qla", [1.05], indirect=True)
@pytest.mark.usefixtures("flash_qla")
def test_a_package_has_no_speed_where_it_is_wrong(invoke: Invoke) -> None:
    words = ("chunk_gated_delta_rule", *WORDS, "--direction", "fwd")
    ours, theirs = bench(invoke, *words, code=1)
    assert (ours["status"], theirs["status"], theirs["ms"]) == ("ok", "wrong", None)


@pytest.mark.usefixtures("flash_qla")
@pytest.mark.parametrize(
    ("operator", "text"),
    [
        (
            "chunk_gated_delta_rule:l2norm",
            "flash_qla.chunk_gated_delta_rule takes no use_qk_l2norm_in_kernel",
        ),
        ("chunk_kda", "flash_qla has no chunk_kda"),
    ],
)
def test_what_a_package_does_not_take_is_missing(invoke: Invoke, operator: str, text: str) -> None:
    ours, theirs = bench(invoke, operator, *WORDS, "--direction", "fwd")
    assert ours["status"] == "ok"
    assert (theirs["status"], theirs["text"], theirs["ms"]) == ("missing", text, None)


def test_a_package_that_is_not_installed_is_told_of(invoke: Invoke) -> None:
    ours, theirs = bench(invoke, "chunk_gated_delta_rule", *WORDS, "--direction", "fwd")
    assert ours["status"] == "ok"
    assert (theirs["provider"], theirs["status"]) == ("flash-qla", "missing")
    assert "flash_qla" in theirs["text"]
