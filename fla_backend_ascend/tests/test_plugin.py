"""The plugin's card, and what its probe says of real and of pretended machines."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fla_backend_ascend import plugin
from fla_core.plugins import Probe, detect
from fla_core.testing import PluginChecks, pretend


class TestPlugin(PluginChecks):
    plugin = plugin
    name = "ascend"
    device = "npu:0"

    def test_doctor_needs_no_toolchain(self) -> None:
        report = plugin.fla_doctor()
        assert report["implementations"] == "this backend has no implementations yet"
        assert {"device files", "torch", "torch-npu", "triton", "ASCEND_HOME_PATH"} <= report.keys()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pretended machine on which everything is there; tests take something away."""
    fake = SimpleNamespace(
        __version__="2.13.0",
        npu=SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 8,
            get_device_name=lambda index: "Ascend910B2",
        ),
    )
    torch_npu = ModuleType("torch_npu")
    torch_npu.__version__ = "2.13.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_npu", torch_npu)
    monkeypatch.setattr(plugin, "DEVICE_FILES", ("/dev/davinci-of-no-machine",))
    monkeypatch.setenv("ASCEND_HOME_PATH", "/usr/local/Ascend/cann")
    return pretend(monkeypatch, fake, {"triton-ascend": "3.2.0"}, "triton")


def reason(device: str = "npu:0") -> str:
    answer = plugin.fla_probe(device)
    assert not answer.ok
    return answer.reason


def test_everything_is_there_but_kernels(machine: Any) -> None:
    assert plugin.fla_probe("npu:1") == Probe(
        ok=False,
        reason="Ascend910B2 with triton-ascend 3.2.0 is there, but this backend has no"
        " implementations yet",
        arch="ascend910b2",
        versions={"torch": "2.13.0", "torch-npu": "2.13.0", "triton-ascend": "3.2.0"},
    )


def test_without_cann_nothing_is_imported(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert reason() == "there is no /dev/davinci-of-no-machine, and ASCEND_HOME_PATH is not set"


def test_a_device_file_will_do(
    machine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH")
    (tmp_path / "davinci0").touch()
    monkeypatch.setattr(plugin, "DEVICE_FILES", (f"{tmp_path}/davinci[0-9]*",))
    assert reason().startswith("Ascend910B2 with triton-ascend 3.2.0 is there")


def test_no_torch_npu(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch_npu")
    monkeypatch.setattr(detect, "find_spec", lambda module: None)
    assert reason() == "torch_npu is not installed"


def test_torch_npu_that_cannot_be_imported(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    assert reason().startswith("importing torch_npu raised ModuleNotFoundError: ")


def test_torch_npu_that_registers_nothing(machine: Any) -> None:
    del machine.npu
    assert reason() == "torch_npu 2.13.0 did not register torch.npu"


def test_no_npu(machine: Any) -> None:
    machine.npu.is_available = lambda: False
    assert reason() == "torch finds no Ascend NPU"


def test_no_such_index(machine: Any) -> None:
    assert reason("npu:8") == "torch finds 8 Ascend NPU(s), there is no index 8"


def test_triton_of_another_vendor(machine: Any) -> None:
    machine.owners = {"triton": "3.6.0"}
    assert reason() == ("triton belongs to triton 3.6.0, this backend needs triton-ascend")


def test_two_tritons(machine: Any) -> None:
    machine.owners = {"triton": "3.6.0", "triton-ascend": "3.2.0"}
    assert reason().startswith("triton belongs to triton 3.6.0 and triton-ascend 3.2.0: they")


def test_triton_that_cannot_be_imported(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert reason().startswith("importing triton raised ModuleNotFoundError: ")
