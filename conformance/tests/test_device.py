"""The default adapter, and a plugin's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from fla_conformance import session
from fla_conformance.device import AdapterError, DeviceAdapter
from fla_conformance.result import Outcome
from plugins_in_process import implementation, installed


class Own(DeviceAdapter):
    """What a plugin may bring."""


def test_poisoned_memory_is_not_a_number() -> None:
    adapter = DeviceAdapter("cpu")
    with adapter.poison():
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            assert torch.empty(64, dtype=dtype).isnan().all()
            assert torch.zeros(4, dtype=dtype).new_empty(7).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_poison_restores_what_it_found() -> None:
    torch.use_deterministic_algorithms(True, warn_only=False)
    try:
        with pytest.raises(KeyError), DeviceAdapter("cpu").poison():
            raise KeyError
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_cpu_needs_no_waiting() -> None:
    adapter = DeviceAdapter("cpu")
    adapter.sync()
    assert adapter.memory() == 0
    adapter.seed(3)
    first = torch.rand(3)
    adapter.seed(3)
    assert torch.equal(torch.rand(3), first)


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_the_default_asks_torch_for_the_device_it_names(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def answer(name: str, value: object) -> None:
        real = getattr(torch, kind)
        assert callable(getattr(real, name))  # what is pretended is there in torch

        def asks(device: object) -> object:
            asked.append((name, device))
            if isinstance(value, Exception):
                raise value
            return value

        setattr(fake, name, asks)

    fake = SimpleNamespace(_is_in_bad_fork=lambda: False)
    answer("synchronize", None)
    answer("get_rng_state", torch.zeros(3))
    answer("mem_get_info", (5, 7))
    answer("manual_seed_all", None)
    monkeypatch.setattr(torch, kind, fake)
    monkeypatch.setattr(torch, "get_device_module", {kind: fake}.__getitem__)
    adapter, second = DeviceAdapter(f"{kind}:1"), torch.device(kind, 1)
    adapter.sync()
    adapter.seed(3)
    assert len(adapter.generators()) == 2
    assert adapter.memory() == 5
    names = ("synchronize", "get_rng_state", "mem_get_info")
    assert [one for one in asked if one[0] in names] == [(name, second) for name in names]
    assert ("manual_seed_all", 3) in asked


def test_a_driver_that_does_not_say_how_much_memory_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unsupported(device: object) -> tuple[int, int]:
        raise RuntimeError("The device doesn't support querying the available free memory.")

    fake = SimpleNamespace(mem_get_info=unsupported)
    monkeypatch.setattr(torch, "get_device_module", {"xpu": fake}.__getitem__)
    assert DeviceAdapter("xpu:0").memory() == 0


def test_a_plugin_brings_its_own() -> None:
    with installed(implementation("gla"), fla_conformance_device=lambda device: Own(device)) as own:
        assert isinstance(own[0].device, Own)
    with installed(implementation("gla")) as default:
        assert type(default[0].device) is DeviceAdapter


def test_an_adapter_that_leaves_memory_as_it_is_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Forgetful(DeviceAdapter):
        @contextmanager
        def poison(self) -> Iterator[None]:
            yield

    # Memory that nobody fills may hold NaN by chance.
    monkeypatch.setattr(torch, "empty", torch.zeros)
    wrong = pytest.raises(AdapterError, match="new memory of cpu with NaN; that of Forgetful")
    own = {"fla_conformance_device": lambda device: Forgetful(device)}
    with wrong, installed(implementation("gla"), **own):
        pass


def test_something_else_is_refused() -> None:
    wrong = pytest.raises(AdapterError, match="must return a DeviceAdapter, got 'cpu'")
    with wrong, installed(implementation("gla"), fla_conformance_device=lambda device: "cpu"):
        pass


def test_a_hook_that_raises_is_named() -> None:
    def broken(device: str) -> DeviceAdapter:
        raise KeyError(device)

    wrong = pytest.raises(AdapterError, match=r"acme: fla_conformance_device\(\) raised KeyError")
    with wrong, installed(implementation("gla"), fla_conformance_device=broken):
        pass


@pytest.mark.parametrize("only", ["", "plugin/device"])
def test_a_wrong_adapter_is_a_row_of_the_report(only: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.card, "plugin_results", lambda record, device: ())
    problem = AdapterError("reference", "must return a DeviceAdapter, got 'cpu'")

    def refuse(*given: object) -> list[object]:
        raise problem

    monkeypatch.setattr(session, "_targets", refuse)
    prepared = session.prepare(session.Request("reference", device="cpu", only=only))
    report = session.run(prepared)
    (row,) = report.failures
    assert (row.id, row.level, row.law) == ("plugin/device", "L0", "device")
    assert row.outcome is Outcome.FAIL_LAW
    assert row.detail == str(problem)
    assert not report.ok
