"""Plugins whose kernels have tiles to choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from fla_core.dispatch.runtime import backends
from fla_core.errors import ContractError, PluginLoadError
from fla_core.plugins.load import resolve
from fla_core.plugins.record import PluginRecord
from fla_core.plugins.tuning import Tuner


def tunable(device: torch.device) -> list[PluginRecord]:
    """The plugins that can be tuned on a device, in their order."""
    return [record for record in backends() if record.serves(device.type) and _target(record)]


def find_tuner(plugin: str, device: torch.device) -> Tuner:
    """The tuner of a plugin; ``""`` where none was named and none was found.

    Raises:
        ContractError: there is no such plugin, or it has none, or none for this device.
        PluginLoadError: the plugin is broken or unavailable.
    """
    if not plugin:
        raise _wrong_device(device, [record for record in backends() if _target(record)])
    record = next((record for record in backends() if record.name == plugin), None)
    if record is not None and (record.failure or record.unavailable or record.rule):
        raise PluginLoadError(record)
    if record is None or not _target(record):
        names = ", ".join(one.name for one in tunable(device)) or "none"
        expected = f"a plugin with tiles to tune on {device.type}: {names}"
        raise ContractError("tune", "plugin", expected, repr(plugin))
    if not record.serves(device.type):
        raise _wrong_device(device, [record])
    return cast(Tuner, resolve(_target(record))(str(device)))


def _wrong_device(device: torch.device, plugins: Sequence[PluginRecord]) -> ContractError:
    kinds = dict.fromkeys(kind for one in plugins if one.backend for kind in one.backend.targets)
    tiles = f"{plugins[0].name} has" if len(plugins) == 1 else "plugins have"
    expected = f"a device that {tiles} tiles to tune for: {', '.join(kinds) or 'none'}"
    return ContractError("tune", "device", expected, str(device))


def _target(record: PluginRecord) -> str:
    if record.hooks is None or record.failure:
        return ""
    answers = record.hooks.fla_tuner()
    return answers[0] if answers else ""
