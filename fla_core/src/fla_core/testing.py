"""What the tests of any plugin's own package want to know."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, ClassVar

from fla_core.contracts import CONTRACTS
from fla_core.dispatch.decision import Decision
from fla_core.dispatch.explain import explain, explain_request
from fla_core.dispatch.resolve import Request
from fla_core.dispatch.runtime import sandbox
from fla_core.plugins import detect, requirements
from fla_core.plugins.api import Device
from fla_core.plugins.discover import in_memory
from fla_core.plugins.validate import card_problem
from fla_core.verify import CallView

TOOLCHAINS = frozenset({"torch", "torch_npu", "triton", "tilelang"})


def toolchains_loaded_by(module: str) -> list[str]:
    """Names of the toolchains that importing a module loads, seen in a fresh interpreter."""
    program = f"import sys, {module}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if run.returncode:
        raise ImportError(f"importing {module} failed: {run.stderr}")
    return sorted(TOOLCHAINS.intersection(run.stdout.split()))


def calls_made_by(package: str, step: Callable[[], object]) -> int:
    """How many functions, of Python and of C, the code of a package calls while a step runs.

    The work of the host in a unit that neither a machine nor its load changes. The step runs a few
    times first, so that what is done once does not count, and the collector waits: what it
    finalises would count where it happens to run.
    """
    folder = str(Path(str(find_spec(package).origin)).parent) + os.sep  # type: ignore[union-attr]
    made = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal made
        caller = frame.f_back if event == "call" else frame
        inside = caller is not None and caller.f_code.co_filename.startswith(folder)
        made += inside and event in ("call", "c_call")

    for _ in range(3):
        step()
    before, collecting = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(count)
    try:
        step()
    finally:
        sys.setprofile(before)
        if collecting:
            gc.enable()
    return made


def pretend(monkeypatch: Any, torch: Any, owners: Mapping[str, str], *modules: str) -> Any:
    """Have probes look at a machine that is not there, until the test ends.

    Args:
        monkeypatch: pytest's fixture.
        torch: what ``import torch`` gives; tests take something away from it.
        owners: version of each distribution that owns the toolchain's module, by name; tests change
            ``torch.owners``.
        modules: toolchains that can be imported, and are empty.

    Returns:
        ``torch``.
    """
    monkeypatch.setattr(torch, "owners", dict(owners), raising=False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    for name in modules:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(detect, "providers", lambda module: torch.owners)
    return torch


def placed(
    monkeypatch: Any,
    plugin: ModuleType,
    contract: str,
    device: str,
    installed: Mapping[str, str],
    inference: Collection[str] = (),
) -> Decision:
    """Where automatic selection places a bfloat16 call with gradients, and what it says of it.

    The plugin is the only one beside the reference. It is probed as it would be for a call, on what
    machine ``pretend`` shows it; its kernels are not loaded.

    Args:
        monkeypatch: pytest's fixture.
        plugin: the module its entry point names.
        contract: name of the contract; the call has what it requires, K = V = 128, and no more.
        device: ``"cuda:0"``.
        installed: versions of the distributions that requirements are held against.
        inference: features of a call without gradients instead, beside those.
    """
    monkeypatch.setattr(requirements, "installed_version", installed.get)
    spec, card = CONTRACTS[contract], plugin.fla_backend()
    operator, form = spec.public[0]
    kind, _, index = device.partition(":")
    required = (name for name, p in spec.domain.features.items() if p == "required")
    view = CallView(
        contract=contract,
        form=form,
        device=kind,
        arch="",
        dtype="bfloat16",
        dtypes={},
        axes={"B": 1, "T": 512, "H": 8, "HV": 8, "K": 128, "V": 128, "N": 1},
        features=frozenset((*inference, *required)),
        gradients=frozenset(s.name for s in spec.inputs if not (s.optional or inference)),
    )
    request = Request(spec, operator, Device(kind, int(index or 0)), view, "", hypothetical=True)
    with sandbox(in_memory(card.name, plugin)):
        return explain_request(request)


class PluginChecks:
    """Tests every installed plugin should pass; derive a ``Test...`` class and set the attributes.

    Attributes:
        plugin: the module its entry point names.
        name: the entry point's name.
        device: a device it is for, ``"cuda:0"``.
    """

    plugin: ClassVar[ModuleType]
    name: ClassVar[str]
    device: ClassVar[str]

    def test_card_is_valid(self) -> None:
        """The card is complete and carries the entry point's name."""
        assert card_problem(self.plugin.fla_backend(), self.name) == ""

    def test_import_loads_no_toolchain(self) -> None:
        """The plugin module is light."""
        assert toolchains_loaded_by(self.plugin.__name__) == []

    def test_a_failing_probe_gives_a_reason(self) -> None:
        """A probe never raises, and one that says no says why."""
        answer = self.plugin.fla_probe(self.device)
        assert answer.ok or answer.reason

    def test_other_devices_are_refused(self) -> None:
        """A device of another type is no device of this plugin."""
        answer = self.plugin.fla_probe("mps:0")
        assert not answer.ok
        assert "'mps'" in answer.reason

    def test_calls_on_cpu_are_left_alone(self) -> None:
        """Its presence does not change what serves the CPU, and dispatch knows it."""
        decision = explain("chunk_simple_gla", device="cpu")
        assert decision.chosen == "reference:simple_gla#chunk"
        assert self.name in dict(decision.rows())

    def test_explain_names_it_for_its_device(self) -> None:
        """``explain`` lists the plugin with its state or its answer."""
        rows = dict(explain("chunk_kda", device=self.device.partition(":")[0]).rows())
        assert any(row.partition(":")[0] == self.name for row in rows)
