"""Settings of torch that change while an implementation runs are told, not attributed."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fakes import domain, implementation, plugin
from fla_core import ops
from fla_core.dispatch.runtime import sandbox
from fla_core.errors import ImplementationWarning


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def innocent(call: Any, save: bool) -> Any:
    """Right, while another thread of the program sets what it likes."""
    other = threading.Thread(target=torch.set_float32_matmul_precision, args=("high",))
    other.start()
    other.join()
    return (call.v.clone(),), ()


def test_another_thread_is_not_blamed_on_the_implementation() -> None:
    x = torch.ones(1, 3, 1, 4)
    torch.set_float32_matmul_precision("highest")
    made = implementation("linear_attn", forward=innocent, domain=domain(), forms=("chunk",))
    with sandbox(plugin("one", made, targets=("cpu",))):
        with pytest.warns(ImplementationWarning) as caught:
            o, _ = ops.chunk_linear_attn(x, x, x, normalize=False, backend="one")
        assert torch.equal(o, x)
        assert torch.get_float32_matmul_precision() == "high"
        (warning,) = caught
        assert "while one:linear_attn#chunk ran: float32 matmul precision" in str(warning.message)
        assert warning.filename == __file__
        torch.set_float32_matmul_precision("highest")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            y = torch.ones(1, 4, 1, 4)
            ops.chunk_linear_attn(y, y, y, normalize=False, backend="one")
