"""Asking a plugin whether it runs on a device: lazily, once, and never for longer than a limit."""

from __future__ import annotations

import threading
from typing import Any

from fla_core.plugins.api import Probe
from fla_core.plugins.load import GUARDED, describe
from fla_core.plugins.record import PluginRecord

PROBE_TIMEOUT = 30.0
"""Seconds a probe may take; compiling one tiny kernel takes a few."""

NOT_NEEDED = Probe(True)

_asking = threading.local()


def device_name(device: Any) -> str:
    """``"cuda:0"`` for a device object; an index that is not given means the first."""
    return device.type if device.type == "cpu" else f"{device.type}:{device.index or 0}"


def probe(record: PluginRecord, device: Any, timeout: float = PROBE_TIMEOUT) -> Probe:
    """Return the plugin's answer for a device, asking at most once."""
    if getattr(_asking, "record", None) is record:
        # Answering would need the answer; waiting for it would only end with the time limit.
        raise RuntimeError(f"the probe of {record.name} makes a call that asks for {record.name}")
    name = device_name(device)
    if (known := record.probes.get(name)) is not None:
        return known
    with record.lock:
        if (known := record.probes.get(name)) is not None:
            return known
        answer = NOT_NEEDED if record.built_in else _ask(record, name, timeout)
        if record.failure is None:
            record.probes[name] = answer
        return answer


def _ask(record: PluginRecord, device: str, timeout: float) -> Probe:
    outcome: list[Any] = []

    def run() -> None:
        _asking.record = record
        try:
            outcome.append(record.hooks.fla_probe(device=device))
        except GUARDED as error:
            outcome.append(error)

    # A thread, since native code that hangs cannot be interrupted; a daemon, so that it cannot
    # keep the process alive either.
    thread = threading.Thread(target=run, name=f"fla-probe-{record.name}", daemon=True)
    thread.start()
    thread.join(timeout)
    if not outcome:
        return _broken(record, f"no answer for {device} within {timeout:g} s")
    (answer,) = outcome
    if isinstance(answer, BaseException):
        return _broken(record, f"{device}: {describe(answer)}", answer)
    if not answer:
        return Probe(True, "the plugin has no fla_probe() hook")
    if not isinstance(answer[0], Probe):
        return _broken(record, f"fla_probe() must return a Probe, got {answer[0]!r}")
    return answer[0]


def _broken(record: PluginRecord, text: str, cause: BaseException | None = None) -> Probe:
    record.breaks("probe", text, cause)
    return Probe(False, text)
