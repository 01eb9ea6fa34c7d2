"""The plugin's card, and what its probe says of real and of pretended machines."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fla_backend_rocm import plugin
from fla_core.plugins import Probe, detect
from fla_core.testing import PluginChecks


class TestPlugin(PluginChecks):
    plugin = plugin
    name = "rocm"
    device = "cuda:0"

    def test_doctor_needs_no_toolchain(self) -> None:
        report = plugin.fla_doctor()
        assert report["implementations"] == "this backend has no implementations yet"
        assert {"device files", "torch", "triton"} <= report.keys()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
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
    fake.owners = {"triton": "3.6.0"}
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    monkeypatch.setattr(detect, "providers", lambda module: fake.owners)
    return fake


def reason(device: str = "cuda:0") -> str:
    answer = plugin.fla_probe(device)
    assert not answer.ok
    return answer.reason


@pytest.mark.parametrize("build", ["triton", "pytorch-triton-rocm"])
def test_everything_is_there_but_kernels(machine: Any, build: str) -> None:
    machine.owners = {build: "3.6.0"}
    assert plugin.fla_probe("cuda:1") == Probe(
        ok=False,
        reason=f"GPU 1 with {build} 3.6.0 is there, but this backend has no implementations yet",
        arch="gfx942",
        versions={"torch": "2.11.0", "hip": "6.3", "triton": "3.6.0"},
    )


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
