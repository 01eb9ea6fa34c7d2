"""Which compiled kernel a launch reaches, and in which form, on a driver that is not there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from fla_core.call import Call
from fla_core.contracts import CONTRACTS
from fla_core.errors import UnsupportedError
from fla_core.seqlens import SeqLens
from fla_triton import launch as module
from fla_triton.calls import Settled, settled
from fla_triton.launch import Launches, launch
from fla_triton.plan import Launch, Problem

STREAM, FUNCTION, METADATA = 7, 11, (4, 1, 0)


class Kernel:
    """A kernel of arguments x, y, T and constants A, B; it notes what is compiled and launched."""

    __name__ = "pretended"
    arg_names = ("x", "y", "T", "A", "B")

    def __init__(self, target: str = "cuda") -> None:
        self.compiled: list[tuple[Any, ...]] = []
        self.raw: list[tuple[Any, ...]] = []
        self.public: list[tuple[Any, ...]] = []
        self._target = target

    def __getitem__(self, grid: tuple[int]) -> Callable[..., object]:
        def compile_and_run(*arguments: Any, **constants: Any) -> object:
            self.compiled.append((grid, arguments, constants))
            return _Compiled(self, self._target, len(self.compiled))

        return compile_and_run


class _Compiled:
    function, packed_metadata = FUNCTION, METADATA

    def __init__(self, kernel: Kernel, target: str, number: int) -> None:
        self.metadata = SimpleNamespace(target=SimpleNamespace(backend=target))
        self.run = lambda *arguments: kernel.raw.append((number, *arguments))
        self._kernel, self._number = kernel, number

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments: self._kernel.public.append((self._number, grid, *arguments))


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    active = SimpleNamespace(get_current_stream=lambda device: STREAM)
    monkeypatch.setattr(module, "driver", SimpleNamespace(active=active))
    monkeypatch.setattr(module, "_RAW_FORM", True)
    monkeypatch.setattr(module, "_compiled", {})
    yield
    module.triton.knobs.runtime.launch_enter_hook.calls.clear()


def tensors(offset: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.zeros(64)[offset : offset + 16]
    assert (x.data_ptr() % 16 == 0) == (offset % 4 == 0)
    return x, torch.zeros(16, dtype=torch.float64)


def go(kernel: Kernel, arguments: tuple[Any, ...], grid: int = 5) -> object:
    return launch(kernel, grid, arguments, {"A": 1, "B": 2}, warps=4, stages=2)


def raw(number: int, grid: int, x: Tensor, y: Tensor, tokens: int) -> tuple[Any, ...]:
    """What the launcher inside the compiled kernel has to get."""
    head = (number, grid, 1, 1, STREAM, FUNCTION, METADATA, None, None, None)
    return (*head, x.data_ptr(), y.data_ptr(), tokens, 1, 2)


def test_the_first_launch_compiles_and_later_ones_pass_addresses() -> None:
    kernel, (x, y), (x2, y2) = Kernel(), tensors(), tensors()
    go(kernel, (x, y, 9))
    go(kernel, (x2, y2, 8), grid=3)
    ((grid, arguments, constants),) = kernel.compiled
    assert grid == (5,)
    assert all(got is given for got, given in zip(arguments, (x, y, 9), strict=True))
    assert constants == {"A": 1, "B": 2, "num_warps": 4, "num_stages": 2}
    assert kernel.raw == [raw(1, 3, x2, y2, 8)]
    assert kernel.public == []


@pytest.mark.parametrize(
    "change",
    [
        lambda x, y: (tensors(1)[0], y, 9),
        lambda x, y: (x.double(), y, 9),
        lambda x, y: (x, None, 9),
        lambda x, y: (x, y, 2**31),
        lambda x, y: (x, y, 9.0),
    ],
    ids=["alignment", "dtype", "absence", "width", "type"],
)
def test_other_kinds_of_arguments_are_compiled_anew(change: Callable[..., Any]) -> None:
    kernel, (x, y) = Kernel(), tensors()
    go(kernel, (x, y, 9))
    go(kernel, change(x, y))
    assert len(kernel.compiled) == 2
    assert kernel.raw == []


def test_other_registers_are_compiled_anew() -> None:
    kernel, (x, y) = Kernel(), tensors()
    for registers in (None, 168, 168):
        launch(kernel, 5, (x, y, 9), {"A": 1, "B": 2}, 4, 2, registers)
    assert [told.get("maxnreg") for _, _, told in kernel.compiled] == [None, 168]


def test_no_programs_launch_nothing() -> None:
    kernel, (x, y) = Kernel(), tensors()
    assert go(kernel, (x, y, 9), grid=0) is None
    assert (kernel.compiled, kernel.raw, kernel.public) == ([], [], [])


def test_hooks_and_other_versions_get_the_public_form(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, (x, y) = Kernel(), tensors()
    go(kernel, (x, y, 9))
    module.triton.knobs.runtime.launch_enter_hook.add(print)
    go(kernel, (x, y, 9))
    assert [call[:2] for call in kernel.public] == [(1, (5, 1, 1))]
    module.triton.knobs.runtime.launch_enter_hook.remove(print)
    go(kernel, (x, y, 9))
    assert kernel.raw == [raw(1, 5, x, y, 9)]

    monkeypatch.setattr(module, "_RAW_FORM", False)
    other, hip = Kernel(), Kernel("hip")
    go(other, (x, y, 9))
    go(other, (x, y, 9))
    monkeypatch.setattr(module, "_RAW_FORM", True)
    go(hip, (x, y, 9))
    go(hip, (x, y, 9))
    for pretended in (other, hip):
        ((number, grid, *arguments),) = pretended.public
        assert (number, grid) == (1, (5, 1, 1))
        assert arguments[0] is x
        assert arguments[2:] == [9, 1, 2]
        assert pretended.raw == []


class Steps:
    """A family's launches of one kernel, and how often its constants were made."""

    def __init__(self) -> None:
        self.kernel, self.launches, self.settled = Kernel(), Launches(), 0

    def run(self, x: Tensor, y: Tensor, tokens: int, grid: int | None = None) -> None:
        self.launches.run("step", (x, y, tokens), self._settle, grid)

    def _settle(self) -> tuple[Kernel, Launch, dict[str, int]]:
        self.settled += 1
        return self.kernel, Launch("step", 5, {"B": 2}, 4, 2, 0), {"A": 1}


def test_a_known_launch_is_repeated_with_nothing_built() -> None:
    steps, (x, y), (x2, y2) = Steps(), tensors(), tensors()
    steps.run(x, y, 9)
    steps.run(x2, y2, 8)
    steps.run(x2, y2, 8, grid=2)
    steps.run(x2, y2, 8, grid=0)
    assert (steps.settled, len(steps.kernel.compiled)) == (1, 1)
    assert steps.kernel.raw == [raw(1, 5, x2, y2, 8), raw(1, 2, x2, y2, 8)]


def test_a_planned_launch_tells_the_compiler_of_its_registers() -> None:
    kernel, launches, (x, y) = Kernel(), Launches(), tensors()
    planned = Launch("step", 5, {"B": 2}, 4, 2, 0, registers=168)
    for _ in range(2):
        launches.run("step", (x, y, 9), lambda: (kernel, planned, {"A": 1}))
    ((_, _, told),) = kernel.compiled
    assert told["maxnreg"] == 168
    assert kernel.raw == [raw(1, 5, x, y, 9)]


def test_an_address_off_the_grid_reaches_a_kernel_of_its_own() -> None:
    steps, (x, y), (odd, _) = Steps(), tensors(), tensors(1)
    steps.run(x, y, 9)
    steps.run(odd, y, 9)
    steps.run(odd, y, 9)
    steps.run(x, y, 9)
    assert len(steps.kernel.compiled) == 2
    assert steps.kernel.raw == [raw(2, 5, odd, y, 9), raw(1, 5, x, y, 9)]


def test_a_launch_that_began_off_the_grid_still_finds_the_kernel_for_others() -> None:
    steps, (x, y), (odd, _) = Steps(), tensors(), tensors(1)
    for first in (odd, x, odd, x):
        steps.run(first, y, 9)
    assert len(steps.kernel.compiled) == 2
    assert steps.kernel.raw == [raw(1, 5, odd, y, 9), raw(2, 5, x, y, 9)]


def test_nothing_is_compiled_under_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, (x, y) = Steps(), tensors()
    monkeypatch.setattr(module, "capturing", lambda tensor: True)
    with pytest.raises(UnsupportedError, match="pretended: compiling a kernel while a CUDA graph"):
        steps.run(x, y, 9)
    assert steps.kernel.compiled == []
    monkeypatch.setattr(module, "capturing", lambda tensor: False)
    steps.run(x, y, 9)
    monkeypatch.setattr(module, "capturing", lambda tensor: True)
    steps.run(x, y, 9)
    assert steps.kernel.raw == [raw(1, 5, x, y, 9)]


def call(dtype: torch.dtype = torch.float32, bounds: tuple[int, ...] | None = None) -> Call:
    q = torch.zeros(1, 6, 2, 4, dtype=dtype)
    seqlens = None if bounds is None else SeqLens(torch.tensor(bounds), bounds)
    given = {"q": q, "k": q, "v": q, "g": None, "g_gamma": None, "initial_state": None}
    return Call(CONTRACTS["simple_gla"], "chunk", given, 0.5, frozenset(), seqlens)


def test_a_signature_is_settled_once() -> None:
    memo: dict[Any, Any] = {}
    seen: list[Problem] = []

    def settle(given: Call, key: str = "forward") -> Settled[int]:
        given.memo = memo
        return settled(given, key, lambda problem: seen.append(problem) or len(seen))

    first = settle(call())
    assert (first.plan, first.problem.longest) == (1, 6)
    assert settle(call()) is first
    assert settle(call(), "backward") is not first
    assert len(seen) == 2


def test_what_a_signature_leaves_open_is_settled_anew() -> None:
    memo: dict[Any, Any] = {}

    def settle(given: Call) -> Settled[int]:
        given.memo = memo
        return settled(given, "forward", lambda problem: problem.longest)

    long, short = settle(call(bounds=(0, 5, 6))), settle(call(bounds=(0, 3, 6)))
    assert (long.plan, short.plan) == (5, 3)
    assert settle(call(bounds=(0, 3, 6))) is short
    assert settle(call(bounds=(0, 2, 5, 6))).plan == 3

    before = torch.get_float32_matmul_precision()
    single, half = settle(call()), settle(call(torch.bfloat16))
    try:
        torch.set_float32_matmul_precision("medium" if before == "highest" else "highest")
        assert settle(call(torch.bfloat16)).multiply is half.multiply is None
        assert settle(call()).multiply != single.multiply
        torch.set_float32_matmul_precision(before)
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        assert settle(call()).multiply != single.multiply
    finally:
        torch.set_float32_matmul_precision(before)
