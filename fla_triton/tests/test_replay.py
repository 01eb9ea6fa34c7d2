"""Calls repeated without their host code do what it did, on a driver that is not there."""

from __future__ import annotations

import ctypes
import importlib.util
import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from triton.runtime.jit import JITFunction

from compile_only.cases import Subject, further, subjects
from compile_only.targets import target
from fla_core.call import Call
from fla_triton import launch as module
from fla_triton import serve, together
from fla_triton.launch import Launches
from fla_triton.lives import Memory
from fla_triton.plan import Launch
from fla_triton.recording import record
from fla_triton.replay import Replay
from specialised import called

CHIP = target("sm90")
OWN = ("delta", "decay")
SUBJECTS = [
    (one, f"{kind}-{one.row.contract}")
    for kind in ("portable", *OWN)
    for one in subjects(
        None if kind == "portable" else import_module(f"fla_backend_cuda.hopper.{kind}").FAMILIES
    )
]
SUBJECTS += [(one, f"portable-{one.row.title}") for one in further()]
EVERY = pytest.mark.parametrize("subject", [s for s, _ in SUBJECTS], ids=[n for _, n in SUBJECTS])
MAGIC = 0x5EED0000


class Machine:
    """Launches write to whatever is no input a number made of all that they read and are told.

    What nobody wrote counts as zero, so that a temporary that starts otherwise changes nothing.
    """

    def __init__(self) -> None:
        self.inputs: set[int] = set()
        self.addresses: set[int] = set()
        self.launched = 0

    def compiled(self, kernel: Any) -> Any:
        """What stands for a compiled kernel."""

        def run(grid: int, y: int, z: int, stream: int, *taken: Any) -> None:
            self.launched += 1
            places = [x for x in taken if isinstance(x, int) and x > 2**32]
            numbers = [None if x in places else x for x in taken]
            words = [_word(x) for x in places]
            told = (kernel.__name__, grid, y, z, stream, numbers, words)
            for index, place in enumerate(places):
                if place not in self.inputs:
                    code = zlib.crc32(repr((told, index)).encode()) & 0xFFFFFFFF
                    ctypes.c_uint64.from_address(place).value = MAGIC << 32 | code

        answers = SimpleNamespace(backend="cuda")
        metadata = SimpleNamespace(target=answers)
        return SimpleNamespace(metadata=metadata, run=run, function=7, packed_metadata=(4, 1, 0))


def _word(place: int) -> int:
    word: int = ctypes.c_uint64.from_address(place).value
    return word if word >> 32 == MAGIC else 0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine()
    active = SimpleNamespace(get_current_stream=lambda device: 7)
    monkeypatch.setattr(module, "driver", SimpleNamespace(active=active))
    monkeypatch.setattr(module, "_RAW_FORM", True)
    monkeypatch.setattr(module, "_compiled", {})
    monkeypatch.setattr(together, "idle_cores", lambda: 1)
    monkeypatch.setattr(serve, "OFTEN", 2)

    def run(kernel: Any, *arguments: Any, grid: tuple[int], **told: Any) -> Any:
        compiled = made.compiled(kernel)
        passed = [x.data_ptr() if isinstance(x, Tensor) else x for x in arguments]
        passed += [told[name] for name in kernel.arg_names[len(arguments) :]]
        compiled.run(*grid, 1, 1, 7, 7, (4, 1, 0), None, None, None, *passed)
        return compiled

    monkeypatch.setattr(JITFunction, "run", run)
    torch.use_deterministic_algorithms(True)  # empty memory holds what no launch wrote
    yield made
    torch.use_deterministic_algorithms(False)


class Host:
    """Host code of a family, which counts how often it runs."""

    def __init__(self, subject: Subject) -> None:
        made = subject.kernels
        family = subject.row.family
        self.own: Any = (
            made(CHIP.profile) if made else serve.kernels_for(family, "fla_backend_cuda", "sm90")
        )
        self.runs = 0

    def forward(self, call: Call, save: bool) -> Any:
        """Outputs."""
        self.runs += 1
        return self.own.forward(call, save)

    def backward(self, call: Call, *others: Any) -> Any:
        """Gradients."""
        self.runs += 1
        return self.own.backward(call, *others)


def filled(call: Call, seed: int) -> Call:
    """The call with numbers in it that tell its arguments apart."""
    draw = random.Random(seed)
    tensors = {n: None if x is None else torch.zeros_like(x) for n, x in call.tensors.items()}
    for x in tensors.values():
        if x is not None:
            _mark(x, draw)
    return call.holding(tensors)


def _mark(tensor: Tensor, draw: random.Random) -> None:
    word = ctypes.c_uint64.from_address(tensor.data_ptr())
    word.value = MAGIC << 32 | draw.getrandbits(32)


class Calls:
    """Calls of one signature, each with arguments of its own."""

    def __init__(self, subject: Subject, machine: Machine, tokens: int) -> None:
        self.host, self.machine, self.backward = Host(subject), machine, subject.row.backward
        self.like, self.memo = called(subject, tokens, 0), {}
        self.implementation: serve.Served = serve.served(lambda index: self.host)

    def results(self, seed: int) -> tuple[dict[str, int], int]:
        """What the machine left in outputs and gradients, and how often host code ran for it."""
        call = filled(self.like, seed)
        call.memo = self.memo
        names = frozenset(name for name, x in call.tensors.items() if x is not None)
        before = self.host.runs
        given = [x for x in call.tensors.values() if x is not None]
        self.machine.inputs = {x.data_ptr() for x in given}
        outputs, residuals = self.implementation.forward(call, True)
        found = {f"output {i}": x for i, x in enumerate(outputs)}
        if self.backward and self.like.tensors["q"].shape[1] > 1:  # type: ignore[union-attr]
            grads = [torch.zeros_like(x) for x in outputs]
            draw = random.Random(-seed)
            for x in grads:
                _mark(x, draw)
            self.machine.inputs |= {x.data_ptr() for x in grads}
            found |= self.implementation.backward(call, residuals, grads, names)
        words = {name: _word(x.data_ptr()) for name, x in found.items()}
        assert len({x.untyped_storage().data_ptr() for x in found.values()}) == len(found)
        return words, self.host.runs - before


@EVERY
@pytest.mark.parametrize("tokens", [1, 200])
def test_what_is_repeated_is_what_host_code_did(
    subject: Subject, tokens: int, machine: Machine
) -> None:
    calls, fresh = (Calls(subject, machine, tokens) for _ in range(2))
    for seed in range(5):
        fresh.memo = {}
        launched = machine.launched
        wanted, runs = fresh.results(seed)
        launched, before = machine.launched - launched, machine.launched
        got, repeated = calls.results(seed)
        assert got == wanted
        assert 0 not in got.values()
        assert machine.launched - before == launched
        assert repeated == (runs, 2 * runs, 0, 0, 0)[seed]


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_another_thread_may_note_a_call_meanwhile(
    name: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(SUBJECTS[0][0], machine, 200)
    itself, todo = getattr(calls.host, name), [True]

    def overtaken(*given: Any) -> Any:
        answer = itself(*given)
        if todo and todo.pop():
            with ThreadPoolExecutor(1) as threads:
                threads.submit(lambda: [calls.results(seed) for seed in range(3)]).result()
        return answer

    monkeypatch.setattr(calls.host, name, overtaken)
    calls.results(3)
    assert not todo
    assert calls.results(4)[1] == 0


@EVERY
@pytest.mark.filterwarnings("error")
def test_calls_of_fake_tensors_launch_nothing(subject: Subject, machine: Machine) -> None:
    calls = Calls(subject, machine, 70)
    calls.results(0)
    for _ in range(3):  # before and after calls are repeated
        launched, mode = machine.launched, FakeTensorMode(allow_non_fake_inputs=True)
        given = {n: x for n, x in calls.like.tensors.items() if x is not None}
        with mode:
            call = calls.like.holding({**calls.like.tensors, **_faked(mode, given)})
            call.memo = calls.memo
            outputs, residuals = calls.implementation.forward(call, True)
            grads = tuple(torch.empty_like(x) for x in outputs)
            needs = frozenset(given if calls.backward else ())
            found = calls.implementation.backward(call, residuals, grads, needs) if needs else {}
        assert machine.launched == launched
        real, _ = calls.implementation.forward(calls.like, True)
        assert [(x.shape, x.dtype) for x in outputs] == [(x.shape, x.dtype) for x in real]
        assert {n: x.shape for n, x in found.items()} == {n: given[n].shape for n in needs}
        assert all(isinstance(x, FakeTensor) for x in (*outputs, *residuals, *found.values()))
        calls.results(0)


def _faked(mode: FakeTensorMode, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: mode.from_tensor(x) for name, x in given.items()}


class Doubled:
    """Host code of two launches with a temporary between them, and what ``extra`` does."""

    def __init__(self, extra: Callable[[Tensor, Tensor], Tensor] = lambda q, o: o) -> None:
        self.extra = extra
        self.kernel = JITFunction(_kernel)

    def __call__(self, call: Call, grads: Sequence[Tensor | None] = ()) -> list[Tensor]:
        q = call.q
        between, o = q.new_empty((4, *q.shape)), torch.empty_like(q)
        for name, (x, y) in {"first": (q, between), "second": (between[1:], o)}.items():
            plan = self.kernel, Launch(name, 3, {}, 4, 1, 0), {}
            launches = call.memo.setdefault("launches", Launches())
            launches.run(name, (x, y, call.scale), lambda plan=plan: plan)
        return [self.extra(q, o)]


def _kernel(x: Any, y: Any, scale: Any) -> None:
    """No code."""


def a_call(dtype: torch.dtype = torch.bfloat16) -> Call:
    call = called(SUBJECTS[0][0], 20, 0)
    return call.but(**{n: x.to(dtype) for n, x in call.tensors.items() if x is not None})


def recorded(machine: Machine, host: Doubled, dtype: torch.dtype = torch.bfloat16) -> Replay | None:
    call = a_call(dtype)
    machine.inputs = {call.q.data_ptr()}
    host(call)
    return record(call, (), host)


def test_a_call_that_differs_otherwise_is_not_repeated(machine: Machine) -> None:
    replay = recorded(machine, Doubled())
    assert replay is not None
    call = a_call()
    assert replay.run(call) is not None
    call.scale = 2.0
    assert replay.run(call) is None
    call = a_call()
    call.tensors = {
        **call.tensors,
        "q": torch.zeros(2 * call.q.numel() + 1)[1 : 1 + call.q.numel()],
    }
    assert call.q.data_ptr() % 16
    assert replay.run(call) is None
    # Of all that launches read, not of the first alone.
    call = a_call().but(k=torch.zeros(call.q.numel() + 1)[1:])
    assert replace(replay, names=(*replay.names, "k")).run(call) is None


def test_another_precision_of_products_is_another_call(machine: Machine) -> None:
    replay, half = recorded(machine, Doubled(), torch.float32), recorded(machine, Doubled())
    assert replay is not None
    assert half is not None
    before = torch.get_float32_matmul_precision()
    assert replay.run(a_call(torch.float32)) is not None
    try:
        torch.set_float32_matmul_precision("medium" if before == "highest" else "highest")
        assert replay.run(a_call(torch.float32)) is None
        assert half.run(a_call()) is not None
    finally:
        torch.set_float32_matmul_precision(before)


def test_whoever_listens_to_launches_hears_them(machine: Machine) -> None:
    replay = recorded(machine, Doubled())
    assert replay is not None
    hooks, heard = module.triton.knobs.runtime.launch_enter_hook, lambda *_: None
    hooks.add(heard)
    assert replay.run(a_call()) is None
    hooks.remove(heard)
    assert replay.run(a_call()) is not None


def test_modes_of_the_caller_do_not_see_what_is_noted(machine: Machine) -> None:
    seen: list[str] = []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = func(*args, **(kwargs or {}))
            seen.append(made.device.type)
            return made

    with Seeing():
        replay = recorded(machine, Doubled())
    assert replay is not None
    assert set(seen) == {"cpu"}


def test_packed_calls_are_not_repeated(machine: Machine) -> None:
    host, call = Doubled(), called(SUBJECTS[0][0], 20, 3)
    host(call)
    assert record(call, (), host) is None


TABLE, THIRD = torch.zeros(9), JITFunction(_kernel)
OTHERWISE: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "writes": lambda q, o: o.zero_(),
    "makes a table": lambda q, o: _taken_too(q, o, torch.zeros(9)),
    "keeps a table": lambda q, o: _taken_too(q, o, TABLE),
    "reads a part": lambda q, o: _taken_too(q, o, q[:, 1:]),
    "returns an argument": lambda q, o: q,
    "returns a part": lambda q, o: o[:, :8],
    "returns what nobody wrote": lambda q, o: torch.empty_like(q),
    "needs numbers": lambda q, o: o * o.sum().item(),
    "goes on with a sum": lambda q, o: _taken_too(q, o, o.sum(0)),
    "returns what an operation makes of it alone": lambda q, o: -o,
    "returns one of two": lambda q, o: o.max(1).values,
}


def _taken_too(q: Tensor, o: Tensor, other: Tensor) -> Tensor:
    plan = THIRD, Launch("third", 3, {}, 4, 1, 0), {}
    Launches().run("third", (o, other, 1.0), lambda: plan)
    return o


@pytest.mark.parametrize("extra", OTHERWISE.values(), ids=OTHERWISE)
def test_host_code_that_does_more_is_run(
    extra: Callable[[Tensor, Tensor], Tensor], machine: Machine
) -> None:
    assert recorded(machine, Doubled(extra)) is None


def test_kernels_that_are_not_compiled_are_not_repeated(machine: Machine) -> None:
    assert record(a_call(), (), Doubled()) is None


def test_a_sum_of_what_was_launched_is_repeated(machine: Machine) -> None:
    def summed(q: Tensor, o: Tensor) -> Tensor:
        return o.sum(1).reshape(-1)

    replay, call = recorded(machine, Doubled(summed)), a_call()
    assert replay is not None
    (found,) = replay.run(call) or ()
    torch.testing.assert_close(found, Doubled(summed)(call)[0], equal_nan=True)
    assert found.shape == (call.q[:, 0].numel(),)


def test_what_starts_as_zeros_does_so_when_repeated(machine: Machine) -> None:
    def counted(q: Tensor, o: Tensor) -> Tensor:
        return _taken_too(q, q.new_zeros((3, 5), dtype=torch.int32), o)

    replay, call = recorded(machine, Doubled(counted)), a_call()
    assert replay is not None
    (found,) = replay.run(call) or ()
    assert (found.shape, found.dtype) == ((3, 5), torch.int32)
    assert found.flatten()[:2].all()  # what the launch wrote
    assert not found.flatten()[2:].any()


def test_memory_together_is_no_more_than_apart() -> None:
    draw = random.Random(3)
    fewer = 0
    for _ in range(100):
        steps = draw.randint(1, 9)
        lives = {i: tuple(sorted(draw.choices(range(steps), k=2))) for i in range(12)}
        sizes = {i: draw.choice((0, 1, 10, 100)) for i in lives}
        alone = frozenset(draw.sample(range(12), 3))
        groups = Memory(lives, sizes, alone).groups()  # type: ignore[arg-type]
        assert sorted(one for _, members in groups for one in members) == sorted(lives)
        assert groups == sorted(groups)
        apart = [sum(sizes[i] for i, (a, b) in lives.items() if a <= t <= b) for t in range(steps)]
        held = [
            sum(sizes[i] for (a, b), m in groups for i in m if a <= t <= b) for t in range(steps)
        ]
        assert max(held) == max(apart)
        for (first, last), members in groups:
            assert len(members) == 1 or alone.isdisjoint(members)
            assert all(first <= lives[i][0] and lives[i][1] <= last for i in members)
        fewer += len(groups) < 12
    assert fewer > 90
