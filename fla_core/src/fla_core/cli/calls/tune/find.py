"""Plugins whose kernels have tiles to choose."""

from __future__ import annotations

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
    """The tuner of a plugin.

    Raises:
        ContractError: there is no such plugin, or it has none.
        PluginLoadError: the plugin is broken or unavailable.
    """
    record = next((record for record in backends() if record.name == plugin), None)
    if record is not None and (record.failure or record.unavailable or record.rule):
        raise PluginLoadError(record)
    target = "" if record is None else _target(record)
    if not target:
        names = ", ".join(one.name for one in tunable(device)) or "none"
        expected = f"a plugin with tiles to tune on {device.type}: {names}"
        raise ContractError("tune", "plugin", expected, repr(plugin))
    return cast(Tuner, resolve(target)(str(device)))


def _target(record: PluginRecord) -> str:
    if record.hooks is None or record.failure:
        return ""
    answers = record.hooks.fla_tuner()
    return answers[0] if answers else ""
