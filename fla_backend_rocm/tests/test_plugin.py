"""The plugin's card, and what its probe says of real and of pretended machines."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fla_backend_rocm import plugin
from fla_core.contracts import CONTRACTS
from fla_core.dispatch.validity import check
from fla_core.errors import UnsupportedError
from fla_core.plugins import Implementation, Probe
from fla_core.plugins.load import resolve
from fla_core.plugins.validate import implementation_problem
from fla_core.testing import PluginChecks, placed, pretend
from fla_triton.profiles import AMD


class TestPlugin(PluginChecks):
    plugin = plugin
    name = "rocm"
    device = "cuda:0"

    def test_doctor_needs_no_toolchain(self) -> None:
        report = plugin.fla_doctor()
        assert report["implementations"] == f"for {', '.join(AMD)}; run on none"
        assert {"device files", "torch", "triton"} <= report.keys()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pretended machine on which everything is there; tests take something away."""
    fake = SimpleNamespace(
        __version__="2.11.0",
        version=SimpleNamespace(cuda=None, hip="6.3"),
        cuda=SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 2,
            get_device_name=lambda index: f"GPU {index}",
            get_device_capability=lambda index: (9, 0),
            get_device_properties=lambda index: SimpleNamespace(gcnArchName="gfx942:xnack-"),
        ),
    )
    return pretend(monkeypatch, fake, {"triton": "3.6.0"}, "triton")


def reason(device: str = "cuda:0") -> str:
    answer = plugin.fla_probe(device)
    assert not answer.ok
    return answer.reason


@pytest.mark.parametrize("build", ["triton", "pytorch-triton-rocm"])
def test_everything_is_there(machine: Any, build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.owners = {build: "3.6.0"}
    monkeypatch.setattr(plugin, "_trial_kernel", lambda index: True)
    versions = {"torch": "2.11.0", "hip": "6.3", "triton": "3.6.0"}
    assert plugin.fla_probe("cuda:1") == Probe(ok=True, arch="gfx942", versions=versions)


def test_kernel_that_is_wrong(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_trial_kernel", lambda index: False)
    assert reason() == "GPU 0 with triton 3.6.0 ran a kernel and got it wrong"


def test_kernel_that_does_not_compile(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(index: int) -> bool:
        raise RuntimeError("lld failed")

    monkeypatch.setattr(plugin, "_trial_kernel", fail)
    assert reason() == "looking for the device raised RuntimeError: lld failed"


@pytest.mark.parametrize("item", list(plugin.fla_implementations()), ids=lambda item: item.contract)
def test_implementations_are_valid(item: Implementation) -> None:
    assert implementation_problem(item, CONTRACTS[item.contract]) == ""
    assert item.arch == tuple(AMD)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("item", list(plugin.fla_implementations()), ids=lambda item: item.contract)
def test_what_is_declared_is_there(item: Implementation) -> None:
    assert callable(resolve(str(item.forward)))
    assert item.backward is None or callable(resolve(str(item.backward)))


@pytest.mark.parametrize(
    ("arch", "triton", "said"),
    [
        ("gfx942", "3.6.0", "unverified, forward on gfx942 triton: compiled for the chip,"),
        ("gfx1250", "3.7.1", "unverified, forward on gfx1250 triton: compiled for the chip,"),
        ("gfx1250", "3.6.0", "forward on gfx1250 triton<3.7.1: Triton compiles for gfx1250"),
    ],
)
def test_what_is_not_proven_is_said_and_what_fails_is_refused(
    arch: str, triton: str, said: str
) -> None:
    rows = tuple(plugin.fla_validity())
    verdict = check(rows, "rocm:simple_gla#chunk", ("forward",), arch, {"triton": triton})
    assert verdict.ok == said.startswith("unverified")
    assert verdict.subject.startswith(said)


@pytest.mark.parametrize("item", list(plugin.fla_implementations()), ids=lambda item: item.contract)
@pytest.mark.parametrize("arch", AMD)
def test_it_is_chosen_and_said_to_be_unverified(
    machine: Any, monkeypatch: pytest.MonkeyPatch, arch: str, item: Implementation
) -> None:
    named = SimpleNamespace(gcnArchName=f"{arch}:sramecc+:xnack-")
    machine.cuda.get_device_properties = lambda index: named
    machine.owners = {"triton": "3.7.1"}
    monkeypatch.setattr(plugin, "_trial_kernel", lambda index: True)
    installed = {"torch": "2.11.0", "triton": "3.7.1"}
    decision = placed(monkeypatch, plugin, item.contract, "cuda:1", installed)
    assert decision.chosen == f"rocm:{item.contract}#chunk"
    remark = f"unverified, backward on {arch} triton: compiled for the chip, never run on it"
    assert remark in decision.render()


def test_chips_without_a_plan_are_refused(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.cuda.get_device_properties = lambda index: SimpleNamespace(gcnArchName="gfx1030")
    monkeypatch.setattr(plugin, "_trial_kernel", lambda index: True)
    installed = {"torch": "2.11.0", "triton": "3.6.0"}
    decision = placed(monkeypatch, plugin, "kda", "cuda:0", installed)
    assert decision.chosen == "reference:kda#chunk"
    assert f"arch=gfx1030, wants {' | '.join(AMD)}" in decision.render()


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_tiles_can_be_tuned_for_the_chip_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    make = resolve(plugin.fla_tuner())
    monkeypatch.setitem(make.__globals__, "arch_of", lambda index: f"gfx{940 + (index or 0)}")
    tuner = make("cuda:2")
    assert (tuner.target, tuner.profile) == ("cuda", AMD["gfx942"])
    assert tuner.table.parts[-3:] == ("fla_backend_rocm", "tables", "gfx942.json")
    with pytest.raises(UnsupportedError, match="tune: the chip 'gfx940' is not supported"):
        make("cuda")


def test_driver_that_raises(machine: Any) -> None:
    def broken() -> bool:
        raise RuntimeError("hipErrorNoDevice")

    machine.cuda.is_available = broken
    assert reason() == "looking for the device raised RuntimeError: hipErrorNoDevice"


def test_torch_for_nvidia_gpus(machine: Any) -> None:
    machine.version = SimpleNamespace(cuda="13.0", hip=None)
    assert reason() == "torch 2.11.0 is built without ROCm"


def test_no_gpu(machine: Any) -> None:
    machine.cuda.is_available = lambda: False
    assert reason() == "torch finds no AMD GPU"


def test_no_such_index(machine: Any) -> None:
    assert reason("cuda:2") == "torch finds 2 AMD GPU(s), there is no index 2"


def test_triton_of_another_vendor(machine: Any) -> None:
    machine.owners = {"triton-xpu": "3.3.0b1"}
    assert reason() == (
        "triton belongs to triton-xpu 3.3.0b1,"
        " this backend needs triton or pytorch-triton-rocm or triton-rocm"
    )


def test_two_tritons(machine: Any) -> None:
    machine.owners = {"triton": "3.6.0", "triton-ascend": "3.2.0"}
    assert reason().startswith("triton belongs to triton 3.6.0 and triton-ascend 3.2.0: they")


def test_triton_that_cannot_be_imported(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert reason().startswith("importing triton raised ModuleNotFoundError: ")


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:1"])
def test_the_torch_of_this_machine_without_a_driver(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.version.hip is not None:
        pytest.skip("this torch is built with ROCm")
    pretend(monkeypatch, torch, {"triton": "3.6.0"}, "triton")
    assert reason(device) == f"torch {torch.__version__} is built without ROCm"


def raises(*ignored: object) -> Any:
    raise SystemError("the driver is broken")


@pytest.mark.parametrize(
    "name", ["is_available", "device_count", "get_device_name", "get_device_properties"]
)
def test_whatever_raises_becomes_a_reason(machine: Any, name: str) -> None:
    setattr(machine.cuda, name, raises)
    assert reason("cuda:1") == "looking for the device raised SystemError: the driver is broken"


def test_builds_that_say_nothing_of_rocm_and_devices_that_are_none(machine: Any) -> None:
    assert "raised ValueError" in reason("cuda:first")
    machine.version = SimpleNamespace()
    assert reason() == "torch 2.11.0 is built without ROCm"
