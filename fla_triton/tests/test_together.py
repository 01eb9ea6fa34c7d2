"""Kernels are compiled side by side: in which order, and with what launches them."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

import triton
import triton.language as tl
from triton.compiler import ASTSource
from triton.runtime.driver import driver

from compile_only.driver import Pretended, Skipping
from compile_only.targets import target
from fla_triton import together, trial


@triton.jit
def short(x, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(x + tl.arange(0, SIZE), 1.0)


@triton.jit
def long(x, y, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(y + tl.arange(0, SIZE), tl.load(x + tl.arange(0, SIZE)))


class Seen(Skipping):
    """What was asked for, of which thread.

    Attributes:
        asked: kernels and their constants in the order in which threads were asked for them.
        made: of which kernels intermediate code was made, from when to when.
        launchers: kernel, kinds of its arguments and thread of each launcher.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Any, ...]] = []
        self.made: list[tuple[str, float, float]] = []
        self.launchers: list[tuple[str, list[str], str]] = []

    def launcher(self, source: Any, metadata: Any) -> Any:
        """Note the thread."""
        assert metadata.num_warps
        thread = threading.current_thread().name
        self.launchers.append((source.name, list(source.signature.values()), thread))
        return super().launcher(source, metadata)

    def by_threads(self) -> list[tuple[str, list[str]]]:
        """The launchers that were not asked for by the launch itself."""
        main = threading.main_thread().name
        return [(name, kinds) for name, kinds, thread in self.launchers if thread != main]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Seen]:
    """A chip that is not there, an empty cache, idle cores."""
    runtime = Seen()
    init, make_ir = ASTSource.__init__, ASTSource.make_ir

    def asked(self: Any, kernel: Any, kinds: Any, constants: Any, *others: Any) -> None:
        runtime.asked.append((kernel.__name__, *constants.values()))
        init(self, kernel, kinds, constants, *others)

    def slowly(self: Any, *arguments: Any) -> Any:
        begin = time.monotonic()
        time.sleep(0.05)  # the interpreter is free for another thread
        try:
            return make_ir(self, *arguments)
        finally:
            runtime.made.append((self.name, begin, time.monotonic()))

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(ASTSource, "__init__", asked)
    monkeypatch.setattr(ASTSource, "make_ir", slowly)
    monkeypatch.setattr(together, "idle_cores", lambda: 4)
    for kernel in (short, long, trial._increment):
        kernel.device_caches.clear()
    driver.set_active(Pretended(target("sm90"), runtime))
    yield runtime
    driver.set_active(None)


def test_threads_take_turns_and_the_longest_goes_first(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(together.SECONDS, "long", 2.0)
    x = torch.zeros(32)
    wanted = [(short, (x,), {"SIZE": size}) for size in (16, 32)]
    together.compile_together([*wanted, (long, (x, x), {"SIZE": 32})])
    assert seen.asked == [("long", 32), ("short", 32), ("short", 16)]
    one, two, three = sorted((begin, end) for _, begin, end in seen.made)
    assert one[1] <= two[0]
    assert two[1] <= three[0]


def test_what_triton_makes_once_a_process_is_made_side_by_side(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, met = threading.Barrier(2, timeout=30), []

    def meet(*arguments: Any) -> None:
        met.append(both.wait())

    monkeypatch.setattr(triton.runtime.cache, "triton_key", meet)
    monkeypatch.setattr(Pretended, "get_current_device", meet)
    together.prepare()
    assert sorted(met) == [0, 1]


def test_what_launches_kernels_is_compiled_beside_them(seen: Seen) -> None:
    x = torch.zeros(32)
    together.compile_together([(short, (x,), {"SIZE": 32}), (long, (x, x), {"SIZE": 32})])
    beside = sorted(seen.by_threads())
    assert [name for name, _ in beside] == ["long", "short"]
    made = len(seen.made)
    short[(1,)](x, SIZE=32)
    long[(1,)](x, x, SIZE=32)
    asked = [(name, kinds) for name, kinds, _ in seen.launchers[2:]]
    assert beside == sorted(asked)
    assert (seen.launches, len(seen.made)) == (2, made)


def test_a_kernel_that_cannot_be_compiled_is_left_to_its_launch(seen: Seen) -> None:
    x = torch.zeros(32)
    together.compile_together([(short, (x,), {"SIZE": 31}), (long, (x, x), {"SIZE": 32})])
    assert sorted(name for name, *_ in seen.made) == ["long", "short"]
    assert short.ASTSource is ASTSource
    with pytest.raises(triton.CompilationError):
        short[(1,)](x, SIZE=31)


def test_the_trial_kernel_of_a_probe_is_compiled_by_threads(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = SimpleNamespace(device=lambda index: nullcontext())
    monkeypatch.setattr(torch, "get_device_module", lambda device_: device)
    assert not trial.runs_on(torch.device("cpu"))  # nothing is launched on this chip
    assert [name for name, _ in seen.by_threads()] == ["_increment"]
    assert [name for name, *_ in seen.made] == ["_increment"]


@pytest.mark.parametrize(
    ("cores", "own", "load", "idle"),
    [
        (16, 16, 0.2, 15),
        (16, 16, 14.9, 1),
        (2, 2, 9.0, -7),
        (None, 1, 0.0, 1),
        (128, 4, 0.2, 4),
        (128, 4, 126.0, 2),
    ],
)
def test_cores_are_idle_that_nobody_keeps_busy(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, own: int, load: float, idle: int
) -> None:
    monkeypatch.setattr(together.os, "cpu_count", lambda: cores)
    mine = set(range(own))
    monkeypatch.setattr(together.os, "sched_getaffinity", lambda pid: mine, raising=False)
    monkeypatch.setattr(together.os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    assert together.idle_cores() == idle


def test_first_calls_of_two_threads_leave_a_kernel_its_own_sources(seen: Seen) -> None:
    x, both = torch.zeros(64), threading.Barrier(4)

    def first(size: int) -> None:
        both.wait()
        together.compile_together([(short, (x,), {"SIZE": size})] * 20)

    threads = [threading.Thread(target=first, args=(2**n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert short.ASTSource is ASTSource
    assert {size for _, size in seen.asked} == {2, 4, 8, 16}


def test_a_hook_that_launches_kernels_may_have_them_compiled(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.zeros(32)
    hooked: list[Any] = []

    def hook(**of: Any) -> None:
        if not hooked:
            hooked.append(of)
            together.compile_together([(short, (x,), {"SIZE": 16})])

    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", hook)
    wanted = [(short, (x,), {"SIZE": 32})]
    first = threading.Thread(target=together.compile_together, args=(wanted,), daemon=True)
    first.start()
    first.join(60)
    assert not first.is_alive()
    assert {size for _, size in seen.asked} == {16, 32}
    assert short.ASTSource is ASTSource


def test_a_launch_may_outlive_the_threads_whose_sources_it_took(seen: Seen) -> None:
    x, kept = torch.zeros(32), []
    short.device_caches[driver.active.get_current_device()]
    own = short.ASTSource
    with ThreadPoolExecutor(1) as threads, together._sources(short, threading.Lock(), threads):
        kept.append(short.ASTSource)
    short.ASTSource = kept[0]
    try:
        short[(1,)](x, SIZE=32)
    finally:
        short.ASTSource = own
    assert [name for name, *_ in seen.made] == ["short"]
