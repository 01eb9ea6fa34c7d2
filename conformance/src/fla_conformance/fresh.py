"""A fresh interpreter that loads one plugin and tells what that did.

``python -m fla_conformance.fresh load|clean|probe NAME TARGET DEVICE BUILT_IN`` prints a record
separator and one JSON object as its last line.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from inspect import getattr_static
from typing import Any

from fla_core.plugins.api import Device
from fla_core.plugins.load import describe, load, resolve
from fla_core.plugins.probe import probe
from fla_core.plugins.record import Origin, PluginRecord
from fla_core.plugins.torch_state import TorchState

_PLACES = ("", "Tensor", "nn.functional", "autograd.Function", "autograd", "linalg", "nn.Module")
"""Where in torch a plugin could be tempted to put functions of its own."""


def main(arguments: list[str]) -> None:
    """Load the plugin and say what happened."""
    what, name, target, device, built_in = arguments
    record = PluginRecord(name, Origin("", built_in=built_in == "1"), target)
    answer = {"load": _load, "clean": _clean, "probe": _probe}[what](record, device)
    # Others may have printed; what follows the separator is ours.
    sys.stdout.write("\n\x1e" + json.dumps(answer, default=str))
    sys.stdout.flush()
    # A thread or an exit handler of the plugin's cannot hold up the answer.
    os._exit(0)


def _load(record: PluginRecord, device: str) -> dict[str, Any]:
    load(record)
    card = record.backend
    return {
        "problem": _problem(record),
        "absent": record.failure is None and bool(record.unavailable),
        "modules": sorted(sys.modules),
        "targets": card.targets if card else (),
        "requires": card.requires if card else (),
    }


def _probe(record: PluginRecord, device: str) -> dict[str, Any]:
    load(record)
    kind, _, index = device.partition(":")
    if not record.serves(kind):
        card = record.backend
        served = ", ".join(card.targets) if card else "nothing"
        return {"problem": f"the card does not name {kind!r}; it serves {served}", "absent": True}
    import torch

    import fla_core.ops  # noqa: F401  (so that only the plugin's own doing is seen)

    before = _snapshot(torch)
    answer = probe(record, Device(kind, int(index or 0) if index or kind != "cpu" else None))
    problem = "" if answer.ok else f"fla_probe({device!r}) says no: {answer.reason}"
    # One that names the architecture has seen the device, and says no all the same.
    absent = not answer.ok and record.failure is None and not answer.arch
    patched = [text for text in _changes(before, _snapshot(torch)) if text.startswith("torch.")]
    if patched:
        problem, absent = f"fla_probe({device!r}) changed {', '.join(patched)}", False
    return {"problem": problem, "absent": absent, "arch": answer.arch}


def _clean(record: PluginRecord, device: str) -> dict[str, Any]:
    import torch

    import fla_core.ops  # noqa: F401  (so that only the plugin's own doing is seen)

    before, environment = _snapshot(torch), dict(os.environ)
    state = TorchState.take()
    load(record)
    for target in _functions(record):
        try:
            resolve(target)
        except Exception as error:
            return {"changes": [], "problem": f"importing {target} raised {describe(error)}"}
    assert state is not None, "torch has been imported"
    changes = state.restore() + _changes(before, _snapshot(torch))
    if record.failure is not None:
        changes.append(record.failure.text)
    for name in sorted({*environment, *os.environ}):
        if environment.get(name) != os.environ.get(name):
            changes.append(f"environment variable {name}")
    return {"changes": list(dict.fromkeys(changes))}


def _functions(record: PluginRecord) -> Iterator[str]:
    for implementation in record.implementations:
        for role in ("forward", "backward", "residuals", "verifier"):
            if isinstance(target := getattr(implementation, role), str):
                yield target


def _snapshot(torch: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "the seed of torch": tuple(torch.get_rng_state().tolist()),
        "the seed of random": random.getstate(),
        "the order of sys.path": tuple(sys.path),
        "sys.excepthook": sys.excepthook,
    }
    for place in _PLACES:
        owner = torch
        for part in filter(None, place.split(".")):
            owner = getattr(owner, part)
        # Of a class also what it inherits: a new attribute may hide that.
        members = dir(owner) if isinstance(owner, type) else list(vars(owner))
        for name in members:
            found[".".join(filter(None, ("torch", place, name)))] = getattr_static(owner, name)
    return found


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    # Names that torch adds on first use are no replacement; only what was there is compared.
    return [
        f"{name} (replaced)" if name.startswith("torch.") else name
        for name, old in before.items()
        if (new := after.get(name)) is not old and new != old
    ]


def _problem(record: PluginRecord) -> str:
    if record.failure is not None:
        return f"{record.failure.phase}: {record.failure.text}"
    return record.unavailable


if __name__ == "__main__":
    main(sys.argv[1:])
