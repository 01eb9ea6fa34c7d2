"""The plugin's card, and what its probe says of real and of pretended machines."""

from __future__ import annotations

import sys
from importlib import import_module
from threading import current_thread
from types import SimpleNamespace
from typing import Any

import pytest

from fla_backend_cuda import plugin
from fla_core.contracts import CONTRACTS
from fla_core.dispatch.lowered import fit
from fla_core.dispatch.validity import find_row
from fla_core.plugins import Implementation, Probe
from fla_core.plugins.validate import implementation_problem
from fla_core.testing import PluginChecks, placed, pretend
from fla_core.verify import OK, CallView
from fla_triton.declared import FORWARD_ONLY, ROWS, Row

PACKAGE = plugin.__package__


class TestPlugin(PluginChecks):
    plugin = plugin
    name = "cuda"
    device = "cuda:0"

    def test_doctor_needs_no_toolchain(self) -> None:
        report = plugin.fla_doctor()
        assert report["implementations"] == "for sm80, sm90, sm100, sm120; run on sm90 alone"
        assert {"device files", "torch", "triton"} <= report.keys()


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
    return pretend(monkeypatch, fake, {"triton": "3.6.0"}, "triton")


def reason(device: str = "cuda:0") -> str:
    answer = plugin.fla_probe(device)
    assert not answer.ok
    return answer.reason


VERSIONS = {"torch": "2.11.0", "cuda": "13.0", "triton": "3.6.0"}


def test_everything_is_there(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_trial_kernel", lambda index: True)
    assert plugin.fla_probe("cuda:1") == Probe(ok=True, arch="sm90", versions=VERSIONS)


def test_kernel_that_is_wrong(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_trial_kernel", lambda index: False)
    assert reason() == "GPU 0 with triton 3.6.0 ran a kernel and got it wrong"


def test_kernel_that_does_not_compile(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(index: int) -> bool:
        raise RuntimeError("ptxas failed")

    monkeypatch.setattr(plugin, "_trial_kernel", fail)
    assert reason() == "looking for the device raised RuntimeError: ptxas failed"


@pytest.mark.parametrize(("arch", "wanted"), [("sm90", [f"{PACKAGE}.hopper.served"]), ("sm80", [])])
def test_kernels_are_imported_while_the_trial_waits_for_compilers(
    monkeypatch: pytest.MonkeyPatch, arch: str, wanted: list[str]
) -> None:
    asked: dict[str, str] = {}

    def note(module: str) -> None:
        asked[module] = current_thread().name

    trial = SimpleNamespace(runs_on=lambda device: device.index == 1)
    monkeypatch.setitem(sys.modules, "fla_triton.trial", trial)
    prepared = SimpleNamespace(prepare=lambda: asked.clear())
    monkeypatch.setitem(sys.modules, "fla_triton.together", prepared)
    monkeypatch.setattr(plugin.detect, "gpu_arch", lambda torch, index: arch)
    monkeypatch.setattr(plugin, "import_module", note)
    assert plugin._trial_kernel(1)
    assert list(asked) == wanted
    assert current_thread().name not in asked.values()


@pytest.mark.parametrize("item", list(plugin.fla_implementations()), ids=lambda item: item.contract)
def test_implementations_are_valid(item: Implementation) -> None:
    assert implementation_problem(item, CONTRACTS[item.contract]) == ""
    hopper = item.variant.startswith("hopper")
    assert item.arch == (("sm90",) if hopper else ("sm80", "sm90", "sm100", "sm120"))


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("item", list(plugin.fla_implementations()), ids=lambda item: item.variant)
def test_what_passed_the_suite_is_said(item: Implementation, direction: str) -> None:
    def status(triton: str) -> str:
        name = f"cuda:{item.contract}#{item.variant}"
        row = find_row(tuple(plugin.fla_validity()), name, direction, "sm90", {"triton": triton})
        assert row is not None
        return row.status

    assert status("3.6.0") == "ok"
    assert status("3.7.1") == "unverified"
    assert status("3.5.1") == ("denied" if "hopper" in item.variant else "unverified")


@pytest.mark.parametrize("contract", [row.contract for row in ROWS])
def test_hoppers_kernels_come_before_the_portable_ones(contract: str) -> None:
    variants = [i.variant for i in plugin.fla_implementations() if i.contract == contract]
    normalised = ["hopper_normalised"] if contract == "linear_attn" else []
    besides = [row.variant for row in FORWARD_ONLY if row.contract == contract]
    assert variants == [*normalised, "hopper", "chunk", *besides]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_is_normalised_in_bfloat16_is_not_widened(dtype: str) -> None:
    axes, features = {"H": 16, "K": 128, "V": 128}, frozenset({"normalize", "initial_z", "varlen"})
    view = CallView("linear_attn", "chunk", "cuda", "sm90", dtype, {}, axes, features)
    known = {i.variant: i for i in plugin.fla_implementations() if i.contract == "linear_attn"}
    domain = known["hopper_normalised"].domain
    assert fit(CONTRACTS["linear_attn"], domain, view).lowerings == ()
    assert domain.check(view).ok == (dtype == "bfloat16")


@pytest.mark.parametrize("name", [i.forward for i in plugin.fla_implementations()])
def test_what_serves_is_there_under_its_name(name: str) -> None:
    pytest.importorskip("triton")
    module, _, attribute = name.partition(":")
    family, _, direction = attribute.partition(".")
    assert callable(getattr(getattr(import_module(module), family), direction))


@pytest.mark.parametrize("contract", ["gated_delta_rule", "kda"])
def test_hoppers_kernels_take_raw_arguments_as_they_are(contract: str) -> None:
    raw = {"g", "beta", "l2norm", "gate", "A_log", "dt_bias", "beta_sigmoid", "neg_eigval", "gva"}
    features = frozenset(raw.intersection(CONTRACTS[contract].features))
    axes = {"H": 8, "HV": 16, "K": 128, "V": 128}
    view = CallView(contract, "chunk", "cuda", "sm90", "bfloat16", {}, axes, features)
    hopper = next(i for i in plugin.fla_implementations() if i.contract == contract)
    fitted = fit(CONTRACTS[contract], hopper.domain, view)
    assert (hopper.variant, fitted.lowerings, hopper.domain.check(view)) == ("hopper", (), OK)


def test_other_compilers_than_the_one_seen_are_unverified() -> None:
    def status(arch: str, triton: str) -> str:
        rows = tuple(plugin.fla_validity())
        row = find_row(rows, "cuda:delta_rule#chunk", "forward", arch, {"triton": triton})
        return "" if row is None else row.status

    assert status("sm90", "3.6.0") == "ok"
    assert status("sm90", "3.7.1") == "unverified"


@pytest.mark.parametrize("contract", [row.contract for row in ROWS])
@pytest.mark.parametrize("capability", [(8, 0), (10, 0), (12, 0)])
def test_chips_that_never_ran_it_are_chosen_and_said_to_be_unverified(
    machine: Any, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], contract: str
) -> None:
    machine.cuda.get_device_capability = lambda index: capability
    monkeypatch.setattr(plugin, "_trial_kernel", lambda index: True)
    decision = placed(monkeypatch, plugin, contract, "cuda:1", VERSIONS)
    arch = "sm{}{}".format(*capability)
    assert decision.chosen == f"cuda:{contract}#chunk"
    remark = f"unverified, backward on {arch} triton: compiled for the chip, never run on it"
    assert remark in decision.render()


def test_a_chip_that_ran_it_is_chosen_without_a_remark(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "_trial_kernel", lambda index: True)
    decision = placed(monkeypatch, plugin, "delta_rule", "cuda:0", VERSIONS)
    assert decision.chosen == "cuda:delta_rule#hopper"
    assert "unverified" not in decision.render()


@pytest.mark.parametrize("row", FORWARD_ONLY, ids=lambda row: row.title)
def test_what_has_no_gradients_is_chosen_for_what_it_takes_alone(
    machine: Any, monkeypatch: pytest.MonkeyPatch, row: Row
) -> None:
    monkeypatch.setattr(plugin, "_trial_kernel", lambda index: True)
    asked = {*row.required, *{"gk"}.intersection(row.features)}
    decision = placed(monkeypatch, plugin, row.contract, "cuda:1", VERSIONS, asked)
    assert decision.chosen == f"cuda:{row.title}"
    assert "unverified" not in decision.render()
    plain = placed(monkeypatch, plugin, row.contract, "cuda:1", VERSIONS, ("final_state",))
    assert plain.chosen == f"cuda:{row.contract}#hopper"


def test_chips_without_a_plan_are_refused(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.cuda.get_device_capability = lambda index: (8, 6)
    monkeypatch.setattr(plugin, "_trial_kernel", lambda index: True)
    decision = placed(monkeypatch, plugin, "kda", "cuda:0", VERSIONS)
    assert decision.chosen == "reference:kda#chunk"
    assert "arch=sm86, wants sm80 | sm90 | sm100 | sm120" in decision.render()


def test_torch_for_amd_gpus(machine: Any) -> None:
    machine.version = SimpleNamespace(cuda=None, hip="6.3")
    assert "torch 2.11.0 is built for AMD GPUs" in reason()
    assert "fla-backend-rocm" in reason()


def test_torch_without_cuda(machine: Any) -> None:
    machine.version = SimpleNamespace(cuda=None, hip=None)
    assert reason() == "torch 2.11.0 is built without CUDA"


def test_no_gpu(machine: Any) -> None:
    machine.cuda.is_available = lambda: False
    assert reason() == "torch finds no NVIDIA GPU"


def test_no_such_index(machine: Any) -> None:
    assert reason("cuda:2") == "torch finds 2 NVIDIA GPU(s), there is no index 2"


def test_driver_that_raises(machine: Any) -> None:
    def broken() -> bool:
        raise RuntimeError("driver/library version mismatch")

    machine.cuda.is_available = broken
    assert reason() == (
        "looking for the device raised RuntimeError: driver/library version mismatch"
    )


def test_triton_of_another_vendor(machine: Any) -> None:
    machine.owners = {"triton-ascend": "3.2.0"}
    assert reason() == ("triton belongs to triton-ascend 3.2.0, this backend needs triton")


def test_two_tritons(machine: Any) -> None:
    machine.owners = {"triton": "3.6.0", "triton-ascend": "3.2.0"}
    assert reason().startswith("triton belongs to triton 3.6.0 and triton-ascend 3.2.0: they")


def test_triton_that_cannot_be_imported(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert reason().startswith("importing triton raised ModuleNotFoundError: ")
