"""What the family's host code costs a repeated call, counted in functions called."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from fla_core.call import Call
from fla_core.contracts import CONTRACTS
from fla_core.testing import calls_made_by
from fla_triton import launch, scalar_decay
from fla_triton.profiles import PROFILES

#: Functions that the code of the library calls in a call whose signature is known: 32, 58 and 89
#: under Python 3.11, with a sixth of headroom.
DECODE, CHUNKS, GRADIENTS = 38, 68, 104


class _Compiled:
    function, packed_metadata = 1, (4, 1, 0)
    metadata = SimpleNamespace(target=SimpleNamespace(backend="cuda"))

    def __init__(self, launched: list[tuple[Any, ...]]) -> None:
        self.run = lambda *arguments: launched.append(arguments)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Raw launches; kernels compile to nothing."""
    found: list[tuple[Any, ...]] = []
    active = SimpleNamespace(get_current_stream=lambda device: 0)
    monkeypatch.setattr(launch, "driver", SimpleNamespace(active=active))
    monkeypatch.setattr(launch, "_RAW_FORM", True)
    monkeypatch.setattr(launch, "_compiled", {})
    for name in ("recurrent_outputs", "chunk_states", "chunk_outputs", "chunk_gradients"):
        monkeypatch.setattr(scalar_decay, name, _kernel(getattr(scalar_decay, name), found))
    return found


def _kernel(real: Any, launched: list[tuple[Any, ...]]) -> Any:
    class Kernel:
        arg_names, __name__ = real.arg_names, real.__name__

        def __getitem__(self, grid: tuple[int]) -> Callable[..., object]:
            return lambda *arguments, **constants: _Compiled(launched)

    return Kernel()


def calls(tokens: int) -> Callable[[], Call]:
    """Makes calls of one signature."""
    memo: dict[Any, Any] = {}
    q, k, v = (torch.zeros(2, tokens, 4, 64, dtype=torch.bfloat16) for _ in "qkv")
    state = torch.zeros(2, 4, 64, 64)
    given: dict[str, Tensor | None] = {"q": q, "k": k, "v": v, "g": None, "g_gamma": None}
    given["initial_state"] = state

    def make() -> Call:
        features = frozenset({"initial_state", "final_state"})
        call = Call(CONTRACTS["simple_gla"], "chunk", given, 0.5, features)
        call.memo = memo
        return call

    return make


@pytest.mark.parametrize(("tokens", "limit", "kernels"), [(1, DECODE, 1), (200, CHUNKS, 2)])
def test_of_forward(tokens: int, limit: int, kernels: int, launched: list[tuple[Any, ...]]) -> None:
    family, make = scalar_decay.Kernels(PROFILES["sm90"]), calls(tokens)
    made = calls_made_by("fla_triton", lambda: family.forward(make(), False))
    assert 10 < made <= limit
    assert len(launched) == 3 * kernels  # four calls, of which the first compiles


def test_of_gradients(launched: list[tuple[Any, ...]]) -> None:
    family, make = scalar_decay.Kernels(PROFILES["sm90"]), calls(200)
    do, dlast = torch.zeros(2, 200, 4, 64, dtype=torch.bfloat16), torch.zeros(2, 4, 64, 64)
    needs = frozenset({"q", "k", "v", "initial_state"})
    step = lambda: family.backward(make(), (), (do, dlast), needs)  # noqa: E731
    assert 30 < calls_made_by("fla_triton", step) <= GRADIENTS
    assert len(launched) == 3 * 3
