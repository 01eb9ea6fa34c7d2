"""The child process of ``doctor``: loads and probes plugins, and may crash.

``python -m fla_core.cli._inspect SKIP...`` writes JSON lines: first ``{"torch": ...}``, then for
each plugin record whose index is not in ``SKIP`` a ``{"begin": index, "phase": ...}`` for each
phase and a ``{"plugin": index, ...}`` with what was found. A reader that sees the stream end in the
middle knows which plugin ended it, and starts again without that one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any

from fla_core.errors import PolicyError
from fla_core.plugins.api import Device, Probe, Validity
from fla_core.plugins.load import GUARDED, describe, load
from fla_core.plugins.probe import probe
from fla_core.plugins.record import PluginRecord
from fla_core.plugins.registry import Registry
from fla_core.plugins.requirements import matches

Say = Callable[[dict[str, Any]], None]


def main(skip: frozenset[int]) -> None:
    """Inspect every plugin that is not to be skipped, in the order of the registry."""
    say = channel()
    say({"phase": "torch"})
    devices = _torch(say)
    for index, record in enumerate(_registry()):
        if index not in skip:
            _inspect(index, record, devices, say)
    say({"done": True})
    # A probe that hangs sits in a thread that would keep some toolchains' exit handlers waiting.
    sys.stdout.flush()
    os._exit(0)


def channel() -> Say:
    """Keep the real stdout for the protocol; what plugins print goes to stderr."""
    lines = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    return lambda message: print(json.dumps(message, default=str), file=lines)


def _registry() -> Registry:
    from fla_core.dispatch.settings import read_settings

    registry = Registry.discovered()
    # Settings that cannot be read are the parent's to report; every plugin may then load.
    with suppress(PolicyError):
        registry.exclude(read_settings(os.environ).plugins.rule_for)
    return registry


def _torch(say: Say) -> list[Device]:
    try:
        import torch
    except Exception as error:
        say({"torch": {"error": describe(error)}, "devices": []})
        return []
    flavour = {"cuda": torch.version.cuda, "hip": torch.version.hip, "xpu": torch.version.xpu}
    built = [f"{name} {version}" for name, version in flavour.items() if version]
    found = [{"device": "cpu", "name": f"{os.cpu_count()} logical cores", "arch": ""}]
    devices, trouble = [Device("cpu")], ""
    try:
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is not None:
            for index in range(torch.accelerator.device_count()):
                devices.append(Device(accelerator.type, index))
                found.append(_device(torch, accelerator.type, index))
    except Exception as error:
        trouble = describe(error)
    facts = {"version": torch.__version__, "built": ", ".join(built) or "CPU only"}
    say({"torch": {**facts, "device_error": trouble}, "devices": found})
    return devices


def _device(torch: Any, kind: str, index: int) -> dict[str, str]:
    from fla_core.plugins.detect import gpu_arch

    module = torch.get_device_module(kind)
    name = module.get_device_name(index) if hasattr(module, "get_device_name") else ""
    arch = gpu_arch(torch, index) if kind == "cuda" else ""
    return {"device": f"{kind}:{index}", "name": str(name), "arch": arch}


def _inspect(index: int, record: PluginRecord, devices: list[Device], say: Say) -> None:
    say({"begin": index, "phase": "load"})
    load(record)
    report: Mapping[str, Any] = {}
    error = ""
    if record.backend is not None and not record.failure and not record.rule:
        for device in devices:
            if record.serves(device.type) and not record.unavailable:
                say({"begin": index, "phase": f"probe {device}"})
                probe(record, device)
        say({"begin": index, "phase": "fla_doctor"})
        report, error = _ask_doctor(record)
    rows = record.validity
    validity = [{**asdict(r), "applies": _applies(r, rows[:i], record)} for i, r in enumerate(rows)]
    facts = {"record": record.to_json(), "doctor": report, "doctor_error": error}
    say({"plugin": index, **facts, "validity": validity})


def _ask_doctor(record: PluginRecord) -> tuple[Mapping[str, Any], str]:
    try:
        answers = record.hooks.fla_doctor()
    except KeyboardInterrupt:
        raise
    except GUARDED as error:
        return {}, f"fla_doctor() raised {describe(error)}"
    if not answers:
        return {}, ""
    if not isinstance(answers[0], Mapping):
        return {}, f"fla_doctor() must return a mapping, got {type(answers[0]).__name__}"
    return {str(label): str(text) for label, text in answers[0].items()}, ""


def _applies(row: Validity, before: Sequence[Validity], record: PluginRecord) -> bool:
    """True when a device of this machine goes by the row: the first that fits counts."""
    return any(
        _fits(row, answer) and not any(_covers(one, row) and _fits(one, answer) for one in before)
        for answer in record.probes.values()
        if answer.ok
    )


def _fits(row: Validity, answer: Probe) -> bool:
    here = fnmatchcase(answer.arch, row.arch or "*")
    return here and matches(row.toolchain, answer.versions)


def _covers(one: Validity, other: Validity) -> bool:
    """Whether a row speaks of every implementation and direction that another one does."""
    named = fnmatchcase(other.implementation, one.implementation)
    return named and one.direction in (other.direction, "*")


if __name__ == "__main__":
    main(frozenset(map(int, sys.argv[1:])))
