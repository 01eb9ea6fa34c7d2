"""Graph capture, pretended: what must not happen under it is refused before anything does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fakes import domain, implementation, plugin
from fla_core import ops, prepare, seqlens
from fla_core.dispatch.runtime import sandbox
from fla_core.errors import UnsupportedError
from fla_core.plugins import Probe

X = torch.ones(1, 6, 2, 4)
ran: list[Any] = []


def forward(call: Any, save: bool) -> Any:
    """Counts tokens where the boundaries are asked for, which is what kernels do."""
    ran.append(None if call.seqlens is None else call.seqlens.longest)
    return (torch.zeros_like(call.v),), ()


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Begin and end a capture."""

    def begin_or_end(captures: bool) -> None:
        monkeypatch.setattr(prepare, "capturing", lambda tensor: captures)
        monkeypatch.setattr(seqlens, "capturing", lambda tensor: captures)

    return begin_or_end


def test_a_call_that_never_ran_is_refused_before_a_backend_is_looked_at(capture: Any) -> None:
    probed = []

    def probe(device: str) -> Probe:
        probed.append(device)
        return Probe(True, arch="sm90")

    served = implementation("simple_gla", forward=forward, domain=domain())
    with sandbox(plugin("acme", served, probe=probe, targets=("cpu",))):
        capture(True)
        with pytest.raises(UnsupportedError, match="before it ran once"):
            ops.chunk_simple_gla(X, X, X)
        assert probed == []
        capture(False)
        ran.clear()
        ops.chunk_simple_gla(X, X, X)
        capture(True)
        ops.chunk_simple_gla(X, X, X)
        assert ran == [None, None]
        with pytest.raises(UnsupportedError, match="before it ran once"):
            ops.chunk_simple_gla(X, X, X[..., :3])


def test_boundaries_are_not_read_from_the_device(capture: Any) -> None:
    served = implementation("simple_gla", forward=forward, domain=domain())
    known, host = torch.tensor([0, 2, 6]), torch.tensor([0, 1, 6])
    with sandbox(plugin("acme", served, targets=("cpu",))):
        ran.clear()
        ops.chunk_simple_gla(X, X, X, cu_seqlens=known)
        capture(True)
        ops.chunk_simple_gla(X, X, X, cu_seqlens=known)
        ops.chunk_simple_gla(X, X, X, cu_seqlens=torch.tensor([0, 1, 6]), cu_seqlens_cpu=host)
        assert ran == [4, 4, 5]
        with pytest.raises(UnsupportedError, match="reading boundaries from the device") as caught:
            ops.chunk_simple_gla(X, X, X, cu_seqlens=torch.tensor([0, 3, 6]))
        assert "cu_seqlens_cpu" in str(caught.value)


def test_kernels_may_walk_boundaries_that_are_a_column_of_a_table(capture: Any) -> None:
    walked: list[list[int]] = []

    def walking(call: Any, save: bool) -> Any:
        bounds = call.seqlens.device
        walked.append(bounds.as_strided(bounds.shape, (1,)).tolist())
        tables.append(call.seqlens.chunk_table(2))
        return (torch.zeros_like(call.v),), ()

    table, tables = torch.tensor([[0, 9], [2, 9], [2, 9], [6, 9]]), []
    column = table[:, 0]
    served = implementation("simple_gla", forward=walking, domain=domain())
    with sandbox(plugin("acme", served, targets=("cpu",))):
        for middle in (2, 1):
            table[1, 0] = middle
            ops.chunk_simple_gla(X, X, X, cu_seqlens=column)
        assert walked == [[0, 2, 2, 6], [0, 1, 2, 6]]
        capture(True)
        ops.chunk_simple_gla(X, X, X, cu_seqlens=column)
    assert walked[2] == walked[1]
    assert tables[2] is tables[1]


def test_a_graph_copies_a_column_itself(capture: Any) -> None:
    copies: list[Any] = []

    def keeping(call: Any, save: bool) -> Any:
        copies.append(call.seqlens.device)
        return (torch.zeros_like(call.v),), ()

    column, row = torch.tensor([[0, 9], [2, 9], [6, 9]])[:, 0], torch.tensor([0, 2, 6])
    served = implementation("simple_gla", forward=keeping, domain=domain())
    with sandbox(plugin("acme", served, targets=("cpu",))):
        for captures in (False, True):
            capture(captures)
            ops.chunk_simple_gla(X, X, X, cu_seqlens=column)
            ops.chunk_simple_gla(X, X, X, cu_seqlens=row)
    first, own, again, same = (one.data_ptr() for one in copies)
    assert again != first
    assert own == same == row.data_ptr()
