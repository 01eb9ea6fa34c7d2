"""Tables of chunks: what is in them, and how they get to a device that is not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fla_core import seqlens
from fla_core.errors import UnsupportedError
from fla_core.seqlens import SeqLens, chunk_table

BOUNDS = (0, 3, 3, 8)
ROWS = [[0, 0], [0, 1], [2, 0], [2, 1], [2, 2]]


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What would be pinned, and copied to a device that is not there."""
    noted: list[tuple[Any, ...]] = []
    convert = torch.Tensor.to

    def pin(self: torch.Tensor) -> torch.Tensor:
        pinned = self.clone()
        noted.append(("pinned", pinned.dtype, id(pinned)))
        return pinned

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(args[0], torch.device) and args[0].type != "cpu":
            noted.append((str(args[0]), self.dtype, id(self), kwargs))
            return self
        return convert(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", to)
    return noted


def test_boundaries_that_are_a_lazy_minus_are_written_out() -> None:
    boundaries = torch._neg_view(torch.tensor([0, -3, -8]))
    assert not SeqLens(boundaries).device.is_neg()
    assert SeqLens(boundaries).bounds == (0, 3, 8)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_table_is_cast_on_the_host_and_copied_without_waiting(
    dtype: torch.dtype, copies: list[tuple[Any, ...]]
) -> None:
    like: Any = SimpleNamespace(device=torch.device("cuda", 1), dtype=dtype)
    table = chunk_table(BOUNDS, 2, like)
    (what, pinned, source), (where, copied, read, how) = copies
    assert (what, where, how) == ("pinned", "cuda:1", {"non_blocking": True})
    assert pinned == copied == dtype
    assert source == read == id(table)
    assert table.tolist() == ROWS


def test_other_devices_get_a_plain_copy(copies: list[tuple[Any, ...]]) -> None:
    like: Any = SimpleNamespace(device=torch.device("xpu", 0), dtype=torch.int32)
    table = chunk_table(BOUNDS, 2, like)
    assert copies == [("xpu:0", torch.int32, id(table), {})]
    on_the_host = chunk_table(BOUNDS, 2, torch.tensor(BOUNDS, dtype=torch.int32))
    assert on_the_host.tolist() == ROWS
    assert on_the_host.dtype == torch.int32
    assert len(copies) == 1


class Copy:
    """An event of a stream that finishes when told to."""

    def __init__(self) -> None:
        self.done = False

    def query(self) -> bool:
        return self.done


def test_another_stream_waits_for_a_copy_that_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[Any] = []
    copy, device = Copy(), torch.device("cuda", 1)
    stream = SimpleNamespace(record_event=lambda: copy, wait_event=waits.append)
    streams = {device: stream, torch.device("cpu"): stream}
    monkeypatch.setattr(torch.cuda, "current_stream", streams.__getitem__)
    lens, made = SeqLens(torch.tensor(BOUNDS), BOUNDS), SimpleNamespace(is_cuda=True, device=device)
    monkeypatch.setattr(seqlens, "chunk_table", lambda *_: made)
    assert lens.chunk_table(2) is made
    assert waits == []
    assert lens.chunk_table(2) is made
    assert waits == [copy]
    copy.done = True
    for _ in range(2):
        assert lens.chunk_table(2) is made
    assert waits == [copy]


def test_a_table_is_not_built_into_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    lens = SeqLens(torch.tensor(BOUNDS), BOUNDS)
    table = lens.chunk_table(2)
    monkeypatch.setattr(seqlens, "capturing", lambda tensor: True)
    assert lens.chunk_table(2) is table
    with pytest.raises(UnsupportedError, match="before the capture"):
        lens.chunk_table(4)
