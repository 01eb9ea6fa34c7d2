"""The plugin's card, and what its probe says of real and of pretended machines."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fla_backend_xpu import plugin
from fla_backend_xpu.chips import chip_name
from fla_core.contracts import CONTRACTS
from fla_core.dispatch.validity import check
from fla_core.errors import UnsupportedError
from fla_core.plugins import Implementation, Probe
from fla_core.plugins.load import resolve
from fla_core.plugins.validate import implementation_problem
from fla_core.testing import PluginChecks, placed, pretend
from fla_triton.profiles import INTEL


class TestPlugin(PluginChecks):
    plugin = plugin
    name = "xpu"
    device = "xpu:0"

    def test_doctor_needs_no_toolchain(self) -> None:
        report = plugin.fla_doctor()
        assert report["implementations"] == f"for {', '.join(INTEL)}; run on none"
        assert {"device files", "torch", "triton"} <= report.keys()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pretended machine on which everything is there; tests take something away."""
    fake = SimpleNamespace(
        __version__="2.11.0+xpu",
        xpu=SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 1,
            get_device_name=lambda index: f"Max {index}",
            get_device_properties=lambda index: SimpleNamespace(version="12.60.7"),
        ),
    )
    return pretend(monkeypatch, fake, {"pytorch-triton-xpu": "3.6.0"}, "triton")


def reason(device: str = "xpu:0") -> str:
    answer = plugin.fla_probe(device)
    assert not answer.ok
    return answer.reason


@pytest.mark.parametrize("build", ["pytorch-triton-xpu", "triton-xpu"])
def test_everything_is_there(machine: Any, build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.owners = {build: "3.6.0"}
    monkeypatch.setattr(plugin, "_trial_kernel", lambda index: True)
    versions = {"torch": "2.11.0+xpu", "triton": "3.6.0"}
    assert plugin.fla_probe("xpu:0") == Probe(ok=True, arch="pvc", versions=versions)


def test_kernel_that_is_wrong(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_trial_kernel", lambda index: False)
    assert reason() == "Max 0 with pytorch-triton-xpu 3.6.0 ran a kernel and got it wrong"


def test_chip_that_nothing_is_planned_for(machine: Any) -> None:
    machine.xpu.get_device_properties = lambda index: SimpleNamespace(version="12.0.0", name="UHD")
    assert reason() == "Max 0 is none of the chips planned for: pvc, bmg, dg2"


@pytest.mark.parametrize(
    ("version", "name", "chip"),
    [
        ("12.60.7", "Intel(R) Data Center GPU Max 1550", "pvc"),
        ("12.55.8", "Intel(R) Arc(TM) A770 Graphics", "dg2"),
        ("20.1.4", "Intel(R) Arc(TM) B580 Graphics", "bmg"),
        ("1.6.33578", "Intel(R) Arc(TM) B580 Graphics", "bmg"),
        ("1.6.33578", "Intel(R) Arc(TM) Pro B60 Graphics", "bmg"),
        ("1.3", "Intel(R) Arc(TM) Pro A60 Graphics", "dg2"),
        ("1.3", "Intel(R) Data Center GPU Flex 170", "dg2"),
        ("", "Intel(R) Data Center GPU Max 1100", "pvc"),
        ("12.0.0", "Intel(R) UHD Graphics 770", ""),
        ("20.4.4", "Intel(R) Arc(TM) 140V GPU", ""),
        ("30.0.4", "Intel(R) Arc(TM) B390 GPU", ""),
    ],
)
def test_chips_are_known_by_version_or_name(version: str, name: str, chip: str) -> None:
    assert chip_name(SimpleNamespace(version=version, name=name)) == chip


@pytest.mark.parametrize("item", list(plugin.fla_implementations()), ids=lambda item: item.contract)
def test_implementations_are_valid(item: Implementation) -> None:
    assert implementation_problem(item, CONTRACTS[item.contract]) == ""
    assert item.arch == tuple(INTEL)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("item", list(plugin.fla_implementations()), ids=lambda item: item.contract)
def test_what_is_declared_is_there(item: Implementation) -> None:
    assert callable(resolve(str(item.forward)))
    assert item.backward is None or callable(resolve(str(item.backward)))


@pytest.mark.parametrize("item", list(plugin.fla_implementations()), ids=lambda item: item.contract)
@pytest.mark.parametrize("triton", ["3.3.0b1", "3.6.0"])
def test_what_is_not_proven_is_said(item: Implementation, triton: str) -> None:
    rows, name = tuple(plugin.fla_validity()), f"xpu:{item.contract}#chunk"
    verdict = check(rows, name, ("backward",), "pvc", {"triton": triton})
    assert verdict.ok
    assert verdict.subject.startswith("unverified, backward on pvc triton: compiled for the chip")


@pytest.mark.parametrize("item", list(plugin.fla_implementations()), ids=lambda item: item.contract)
@pytest.mark.parametrize(("version", "arch"), [("12.60.7", "pvc"), ("20.1.4", "bmg")])
def test_it_is_chosen_and_said_to_be_unverified(
    machine: Any, monkeypatch: pytest.MonkeyPatch, version: str, arch: str, item: Implementation
) -> None:
    machine.xpu.get_device_properties = lambda index: SimpleNamespace(version=version)
    monkeypatch.setattr(plugin, "_trial_kernel", lambda index: True)
    installed = {"torch": "2.11.0+xpu", "triton": "3.6.0"}
    decision = placed(monkeypatch, plugin, item.contract, "xpu:0", installed)
    assert decision.chosen == f"xpu:{item.contract}#chunk"
    remark = f"unverified, backward on {arch} triton: compiled for the chip, never run on it"
    assert remark in decision.render()


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_tiles_can_be_tuned_for_the_chip_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    make, chips = resolve(plugin.fla_tuner()), {None: "", 1: "bmg"}
    monkeypatch.setitem(make.__globals__, "arch_of", chips.get)
    tuner = make("xpu:1")
    assert (tuner.target, tuner.profile) == ("xpu", INTEL["bmg"])
    assert tuner.table.parts[-3:] == ("fla_backend_xpu", "tables", "bmg.json")
    with pytest.raises(UnsupportedError, match="tune: the chip '' is not supported"):
        make("xpu")


def test_nothing_else_is_asked_of_a_build_without_xpu(machine: Any) -> None:
    def absent() -> int:
        raise AssertionError("Torch not compiled with XPU enabled")

    machine.xpu = SimpleNamespace(is_available=lambda: False, device_count=absent)
    assert reason() == "torch finds no Intel GPU"


def test_no_such_index(machine: Any) -> None:
    assert reason("xpu:1") == "torch finds 1 Intel GPU(s), there is no index 1"


def test_triton_of_another_vendor(machine: Any) -> None:
    machine.owners = {"triton": "3.6.0"}
    assert reason() == (
        "triton belongs to triton 3.6.0, this backend needs pytorch-triton-xpu or triton-xpu"
    )


def test_two_tritons(machine: Any) -> None:
    machine.owners = {"triton": "3.6.0", "triton-ascend": "3.2.0"}
    assert reason().startswith("triton belongs to triton 3.6.0 and triton-ascend 3.2.0: they")


def test_triton_that_cannot_be_imported(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert reason().startswith("importing triton raised ModuleNotFoundError: ")


@pytest.mark.parametrize("device", ["xpu", "xpu:0", "xpu:1"])
def test_the_torch_of_this_machine_without_a_driver(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.xpu.is_available():
        pytest.skip("this machine has an Intel GPU")
    pretend(monkeypatch, torch, {"triton-xpu": "3.6.0"}, "triton")
    assert reason(device) == "torch finds no Intel GPU"


def raises(*ignored: object) -> Any:
    raise SystemError("the driver is broken")


@pytest.mark.parametrize(
    "name", ["is_available", "device_count", "get_device_name", "get_device_properties"]
)
def test_whatever_raises_becomes_a_reason(machine: Any, name: str) -> None:
    setattr(machine.xpu, name, raises)
    assert reason() == "looking for the device raised SystemError: the driver is broken"


def test_builds_that_know_nothing_of_xpu_and_devices_that_are_none(machine: Any) -> None:
    assert "raised ValueError" in reason("xpu:first")
    del machine.xpu
    assert reason() == "torch 2.11.0+xpu has no torch.xpu"
