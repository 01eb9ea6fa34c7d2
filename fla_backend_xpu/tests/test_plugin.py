"""The plugin's card, and what its probe says of real and of pretended machines."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fla_backend_xpu import plugin
from fla_core.plugins import Probe, detect
from fla_core.testing import PluginChecks


class TestPlugin(PluginChecks):
    plugin = plugin
    name = "xpu"
    device = "xpu:0"

    def test_doctor_needs_no_toolchain(self) -> None:
        report = plugin.fla_doctor()
        assert report["implementations"] == "this backend has no implementations yet"
        assert {"device files", "torch", "triton"} <= report.keys()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A pretended machine on which everything is there; tests take something away."""
    fake = SimpleNamespace(
        __version__="2.11.0+xpu",
        xpu=SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 1,
            get_device_name=lambda index: f"Max {index}",
        ),
    )
    fake.owners = {"pytorch-triton-xpu": "3.6.0"}
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    monkeypatch.setattr(detect, "providers", lambda module: fake.owners)
    return fake


def reason(device: str = "xpu:0") -> str:
    answer = plugin.fla_probe(device)
    assert not answer.ok
    return answer.reason


@pytest.mark.parametrize("build", ["pytorch-triton-xpu", "triton-xpu"])
def test_everything_is_there_but_kernels(machine: Any, build: str) -> None:
    machine.owners = {build: "3.6.0"}
    assert plugin.fla_probe("xpu:0") == Probe(
        ok=False,
        reason=f"Max 0 with {build} 3.6.0 is there, but this backend has no implementations yet",
        versions={"torch": "2.11.0+xpu", "triton": "3.6.0"},
    )


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
