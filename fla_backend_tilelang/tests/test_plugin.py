"""The plugin's card, and what its probe says of real and of pretended machines."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fla_backend_tilelang import plugin
from fla_core.plugins import Probe
from fla_core.testing import PluginChecks, pretend


class TestPlugin(PluginChecks):
    plugin = plugin
    name = "tilelang"
    device = "cuda:0"

    def test_doctor_needs_no_toolchain(self) -> None:
        report = plugin.fla_doctor()
        assert report["implementations"] == "this backend has no implementations yet"
        assert {"device files", "torch", "tilelang"} <= report.keys()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pretended machine on which everything is there; tests take something away."""
    fake = SimpleNamespace(
        __version__="2.11.0",
        version=SimpleNamespace(cuda="13.0", hip=None),
        cuda=SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 2,
            get_device_name=lambda index: f"GPU {index}",
            get_device_capability=lambda index: (9, 0),
            get_device_properties=lambda index: SimpleNamespace(gcnArchName="gfx942:xnack-"),
        ),
    )
    return pretend(monkeypatch, fake, {"tilelang": "0.1.15"}, "tilelang")


def reason(device: str = "cuda:0") -> str:
    answer = plugin.fla_probe(device)
    assert not answer.ok
    return answer.reason


@pytest.mark.parametrize(("cuda", "hip", "arch"), [("13.0", None, "sm90"), (None, "6.3", "gfx942")])
def test_everything_is_there_but_kernels(
    machine: Any, cuda: str | None, hip: str | None, arch: str
) -> None:
    machine.version = SimpleNamespace(cuda=cuda, hip=hip)
    assert plugin.fla_probe("cuda:1") == Probe(
        ok=False,
        reason="GPU 1 with tilelang 0.1.15 is there, but this backend has no implementations yet",
        arch=arch,
        versions={"torch": "2.11.0", "tilelang": "0.1.15"},
    )


def test_torch_for_cpus(machine: Any) -> None:
    machine.version = SimpleNamespace(cuda=None, hip=None)
    assert reason() == "torch 2.11.0 is built without CUDA and ROCm"


def test_no_gpu_is_found_before_tilelang_is_imported(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.cuda.is_available = lambda: False
    monkeypatch.setitem(sys.modules, "tilelang", None)
    assert reason() == "torch finds no GPU"


def test_no_tilelang(machine: Any) -> None:
    machine.owners = {}
    assert reason() == "tilelang is not installed"


def test_tilelang_that_cannot_be_imported(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tilelang", None)
    assert reason().startswith("importing tilelang raised ModuleNotFoundError: ")
