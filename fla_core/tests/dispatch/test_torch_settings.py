"""Settings of torch that change while an implementation runs are told, not attributed."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from fakes import domain, implementation, plugin
from fla_core import ops
from fla_core.dispatch.runtime import sandbox
from fla_core.dtypes import multiplies_exactly
from fla_core.errors import ImplementationWarning


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def apart() -> None:
    """Torch was told of one backend alone, and raises where it is asked for the one setting."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with pytest.raises(RuntimeError, match="precision"):
        torch.get_float32_matmul_precision()


def doing(what: Callable[[], object]) -> Any:
    """A plugin that computes something and does something."""

    def forward(call: Any, save: bool) -> Any:
        what()
        return (call.v.clone(),), ()

    made = implementation("linear_attn", forward=forward, domain=domain(), forms=("chunk",))
    return plugin("one", made, targets=("cpu",))


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


@pytest.mark.usefixtures("apart")
def test_backends_may_multiply_float32_in_ways_of_their_own() -> None:
    assert multiplies_exactly(torch.device("cpu"))
    assert not multiplies_exactly(torch.device("cuda:1"))
    x = torch.ones(1, 3, 1, 4)
    with sandbox(doing(lambda: None)), warnings.catch_warnings():
        warnings.simplefilter("error")
        ops.chunk_linear_attn(x, x, x, normalize=False, backend="one")


@pytest.mark.usefixtures("apart")
def test_settings_of_backends_are_told_too() -> None:
    def change() -> None:
        torch.backends.cuda.matmul.fp32_precision = "ieee"

    x = torch.ones(1, 3, 1, 4)
    with sandbox(doing(change)), pytest.warns(ImplementationWarning) as caught:
        ops.chunk_linear_attn(x, x, x, normalize=False, backend="one")
    assert "float32 matmul precision ('tf32', " in str(caught[0].message)


@pytest.mark.parametrize(
    ("setting", "exact"), [("highest", True), ("high", False), ("medium", False)]
)
@pytest.mark.parametrize("kind", ["cpu", "cuda", "xpu"])
def test_one_setting_is_that_of_every_backend(setting: str, exact: bool, kind: str) -> None:
    torch.set_float32_matmul_precision(setting)
    assert multiplies_exactly(torch.device(kind)) is exact
