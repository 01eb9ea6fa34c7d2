"""What the suite has to know of a device: wait for it, fill its memory, seed it, name it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fla_core.dispatch.runtime import RUNTIME
from fla_core.errors import FlaError
from fla_core.plugins.probe import probe
from fla_core.plugins.record import PluginRecord


@dataclass(frozen=True, slots=True)
class DeviceAdapter:
    """A device through torch. A plugin may return a subclass from ``fla_conformance_device``.

    Attributes:
        name: ``"cpu"``, ``"cuda:0"``, ``"npu:1"``.
    """

    name: str

    @property
    def device(self) -> torch.device:
        """The torch device."""
        return torch.device(self.name)

    @property
    def _module(self) -> Any:
        return None if self.device.type == "cpu" else torch.get_device_module(self.device.type)

    def sync(self) -> None:
        """Wait until everything that was started has ended, and raise what went wrong in it."""
        if self._module is not None:
            self._module.synchronize(self.device)

    def seed(self, seed: int) -> None:
        """Seed the generators that a kernel might draw from."""
        torch.manual_seed(seed)

    def generators(self) -> tuple[torch.Tensor, ...]:
        """States of the generators that :meth:`seed` seeds."""
        own = getattr(self._module, "get_rng_state", None)
        return (torch.get_rng_state(), *(() if own is None else (own(self.device),)))

    def memory(self) -> int:
        """Bytes free on the device; 0 when it does not say."""
        info = getattr(self._module, "mem_get_info", None)
        try:
            return 0 if info is None else int(info(self.device)[0])
        except RuntimeError:
            return 0  # drivers of some Intel GPUs cannot tell

    @contextmanager
    def poison(self) -> Iterator[None]:
        """Have torch hand out memory that is full of NaN while the block lasts.

        That is a part of its deterministic mode; operators without a deterministic form run all the
        same. A claim of determinism is therefore no matter for this block.
        """
        settings: Any = torch.utils.deterministic
        fill = settings.fill_uninitialized_memory
        mode = torch.get_deterministic_debug_mode()
        # Not use_deterministic_algorithms, which imports inductor: 4 s of each process's start.
        torch.set_deterministic_debug_mode("warn")
        settings.fill_uninitialized_memory = True
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*deterministic")
                yield
        finally:
            settings.fill_uninitialized_memory = fill
            torch.set_deterministic_debug_mode(mode)


class AdapterError(FlaError, TypeError):
    """A plugin's hook ``fla_conformance_device`` gave no adapter."""

    def __init__(self, plugin: str, problem: str) -> None:
        self.plugin, self.problem = plugin, problem
        super().__init__(f"{plugin}: fla_conformance_device() {problem}")

    def __reduce__(self) -> tuple[type[AdapterError], tuple[str, str]]:
        return type(self), (self.plugin, self.problem)


class DeviceError(FlaError):
    """A device that torch does not have here."""


def first_line(error: BaseException) -> str:
    """What an error says first."""
    return str(error).strip().partition("\n")[0]


def adapter_of(record: PluginRecord, device: str) -> DeviceAdapter:
    """The plugin's own adapter for a device, or the default one.

    Raises:
        AdapterError: its hook raised, or returned something else.
    """
    try:
        answers = record.hooks.fla_conformance_device(device=device) if record.hooks else []
    except Exception as error:
        raise AdapterError(record.name, f"raised {type(error).__name__}: {error}") from error
    if not answers:
        return DeviceAdapter(device)
    adapter = answers[0]
    if not isinstance(adapter, DeviceAdapter):
        raise AdapterError(record.name, f"must return a DeviceAdapter, got {adapter!r}")
    return adapter


def check_poison(record: PluginRecord, adapter: DeviceAdapter) -> None:
    """Look whether memory really is poisoned; a device may ignore what torch is told.

    Raises:
        AdapterError: new memory is not full of NaN while it should be.
    """
    with adapter.poison():
        fresh = torch.empty(64, device=adapter.device)
    adapter.sync()
    if not fresh.isnan().all():
        kind = type(adapter).__name__
        wanted = f"must give an adapter whose poison() fills new memory of {adapter.name} with NaN"
        raise AdapterError(record.name, f"{wanted}; that of {kind} does not")


def examined(record: PluginRecord, device: str) -> tuple[DeviceAdapter, str]:
    """The adapter of a device, and its architecture as the plugin's probe names it.

    Raises:
        AdapterError: the plugin's adapter is none, or does not do what it should.
        DeviceError: the plugin would run there, but torch has no such device here.
    """
    adapter = adapter_of(record, device)
    with _reached(device):
        place = adapter.device
    answer = probe(record, place, RUNTIME.probe_timeout)
    if answer.ok:
        with _reached(device):
            torch.empty(0, device=place)
        check_poison(record, adapter)
    return adapter, answer.arch


@contextmanager
def _reached(device: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        # Torch built without a kind of device says so by an assertion.
        raise DeviceError(f"--device {device}: torch has none here: {first_line(error)}") from None
