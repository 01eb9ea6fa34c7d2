"""The head of a report: what was tested, by what, on what. Nothing in it names a path or a user."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import importlib_metadata

import fla_conformance
from fla_core.contracts.lock import current
from fla_core.plugins.installed import owners, version_of
from fla_core.plugins.record import PluginRecord

_ALWAYS = ("fla-kernels-core", "fla-conformance", "torch", "hypothesis", "pytest")
_TOOLCHAINS = ("triton", "torch_npu", "tilelang")


def header(
    record: PluginRecord,
    device: str,
    arch: str,
    selection: Mapping[str, Any],
    argv: Iterable[str],
) -> dict[str, Any]:
    """Everything of a report that is known before the first check runs."""
    return {
        "suite": suite(),
        "plugin": plugin(record),
        "host": host(device, arch),
        "dists": distributions(record),
        "selection": dict(selection),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": 0.0,
        "argv": list(argv),
        "complete": False,
    }


def suite() -> dict[str, str]:
    """Versions of suite and core, and a hash over the meaning of every contract."""
    locked = json.dumps(current(), sort_keys=True)
    return {
        "version": fla_conformance.__version__,
        "core": version_of("fla-kernels-core"),
        "contracts_hash": _hash(locked),
    }


def plugin(record: PluginRecord) -> dict[str, Any]:
    """The plugin's card and origin."""
    card, origin = record.backend, record.origin
    return {
        "name": record.name,
        "distribution": origin.distribution,
        "version": origin.version,
        "card_hash": card_hash(record),
        "description": card.description if card else "",
        "toolchain": card.toolchain if card else "",
        "targets": list(card.targets) if card else [],
        "editable": origin.editable,
        "source": _source(origin.distribution) if origin.editable else _NO_SOURCE,
    }


def card_hash(record: PluginRecord) -> str:
    """Hash of everything the plugin declares."""
    declared = [_plain(record.backend), *map(_plain, record.implementations)]
    return _hash(json.dumps(declared, sort_keys=True))


def host(device: str, arch: str) -> dict[str, str]:
    """The device and what drives it."""
    import torch

    kind = device.partition(":")[0]
    return {
        "device": device,
        "name": _device_name(torch, device) or _processor(),
        "arch": arch or platform.machine(),
        "driver": _driver(torch, kind),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def distributions(record: PluginRecord) -> dict[str, str]:
    """Versions of the distributions that take part, by name."""
    names = {*_ALWAYS, record.origin.distribution}
    for module in _TOOLCHAINS:
        names.update(owners(module))
    found = {name: version_of(name) for name in sorted(names)}
    return {name: text for name, text in found.items() if text}


_NO_SOURCE = {"commit": "", "dirty": False}


def _source(distribution: str) -> dict[str, Any]:
    """Commit of an editable plugin's working tree; empty where it is not under git."""
    try:
        text = importlib_metadata.distribution(distribution).read_text("direct_url.json")
    except importlib_metadata.PackageNotFoundError:
        return _NO_SOURCE
    folder = Path(unquote(urlsplit(json.loads(text or "{}").get("url", "")).path))
    commit = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--", ".")
    return {"commit": commit, "dirty": bool(commit and changed)}


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _device_name(torch: Any, device: str) -> str:
    kind = device.partition(":")[0]
    module: Any = None if kind == "cpu" else getattr(torch, kind, None)
    if not hasattr(module, "get_device_name"):
        return ""
    try:
        return str(module.get_device_name(device))
    except (AssertionError, RuntimeError):  # a build of torch for another vendor, no such index
        return "none that torch can open"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _driver(torch: Any, kind: str) -> str:
    built = {"cuda": torch.version.hip or torch.version.cuda, "xpu": torch.version.xpu}.get(kind)
    label = "hip" if kind == "cuda" and torch.version.hip else kind
    return f"{label} {built}" if built else ""


def _plain(value: Any) -> Any:
    """Declared data with sets sorted and functions named, the same in every process."""
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in sorted(value)}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in sorted(value.__dataclass_fields__)}
    if callable(value):
        return f"{value.__module__}:{value.__qualname__}"
    return value


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
