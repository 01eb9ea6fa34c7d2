"""Everything ``doctor`` reports, as plain data, and the problems in it with what to do."""

from __future__ import annotations

import os
import platform
from typing import Any

from fla_core.cli._child import Inspection, inspect_plugins
from fla_core.cli._settings import other_variables, settings_report
from fla_core.plugins.detect import providers
from fla_core.plugins.discover import discover
from fla_core.plugins.installed import unreadable, version_of
from fla_core.plugins.record import PluginRecord
from fla_core.plugins.requirements import remedy, unmet

Row = dict[str, Any]


def diagnose() -> Row:
    """Look at everything; see :mod:`fla_core.cli.doctor` for the keys."""
    records = discover()
    settings, problems = settings_report(os.environ, [record.name for record in records])
    found = inspect_plugins()
    plugins = [_plugin(i, record, found) for i, record in enumerate(records)]
    problems += _torch_problems(found) + _triton_problems() + _metadata_problems()
    present = {device["device"].partition(":")[0] for device in found.devices}
    for plugin in plugins:
        problems += _state_problems(plugin, present) + _remarks(plugin)
    return {
        "ok": not any(problem["severity"] == "error" for problem in problems),
        "versions": _versions(found),
        "devices": found.devices,
        "settings": settings,
        "variables": other_variables(os.environ),
        "plugins": plugins,
        "problems": problems,
    }


def problem(severity: str, subject: str, text: str, step: str) -> Row:
    """One finding and the next thing to do about it."""
    return {"severity": severity, "subject": subject, "text": text, "next": step}


def _versions(found: Inspection) -> list[Row]:
    rows = [("python", platform.python_version(), platform.platform())]
    owners = ", ".join(f"{name} {version}" for name, version in providers("torch").items())
    version = found.torch.get("version") or found.torch.get("error", found.failure)
    built = f"{found.torch['built']}; " if "built" in found.torch else ""
    rows.append(("torch", version, f"{built}from {owners}" if owners else "not installed"))
    triton = providers("triton")
    owners = ", ".join(f"from {name}" for name in triton) or "no distribution provides it"
    rows.append(("triton", " | ".join(triton.values()), owners))
    rows += [(name, version_of(name), "") for name in ("numpy", "pluggy", "fla-kernels-core")]
    return [{"name": n, "version": v or "not installed", "note": note} for n, v, note in rows]


def _plugin(index: int, record: PluginRecord, found: Inspection) -> Row:
    """The findings of the child, or the bare record where it crashed or never came so far."""
    seen = found.plugins.get(index, {})
    if crash := found.crashes.get(index):
        phase = "load" if crash.endswith("load") else "probe"
        record.breaks(phase, crash)
    row = {**(seen.get("record") or record.to_json())}
    requires = (row["backend"] or {}).get("requires", ())
    needs = [(text, unmet((text,))) for text in requires]
    row["requirements"] = [
        {
            "text": text,
            "met": not lack,
            "problem": lack.removeprefix(f"needs {text}, ").removeprefix("which is "),
        }
        for text, lack in needs
    ]
    row["validity"] = seen.get("validity", [])
    row["doctor"], row["doctor_error"] = seen.get("doctor", {}), seen.get("doctor_error", "")
    row["module"] = record.target
    return row


def _torch_problems(found: Inspection) -> list[Row]:
    if failure := found.failure or found.torch.get("error"):
        step = "python -c 'import torch' shows the whole error; reinstall torch"
        return [problem("error", "torch", failure, step)]
    if failure := found.torch["device_error"]:
        step = "check the driver, and that torch was built for it"
        return [problem("warning", "devices", failure, step)]
    return []


def _triton_problems() -> list[Row]:
    owners = list(providers("triton"))
    if len(owners) < 2:
        return []
    text = f"{' and '.join(owners)} overwrite each other's files"
    step = f"pip uninstall {' '.join(owners)}, then install the one for your device"
    return [problem("warning", "triton", text, step)]


def _metadata_problems() -> list[Row]:
    """Leftovers in which no distribution can be recognised; whatever they provide is not seen."""
    step = "delete it, or install again what it belongs to"
    return [
        problem("warning", "installed packages", f"{place} cannot be read: {why}", step)
        for place, why in unreadable().items()
    ]


def _state_problems(plugin: Row, present: set[str]) -> list[Row]:
    """Why a plugin cannot serve; a mere note when torch sees no device that it is for."""
    subject = f"plugin {plugin['name']}"
    targets = (plugin["backend"] or {}).get("targets", ())
    severity = "warning" if present.intersection(targets) else "note"
    if plugin["state"] == "broken":
        return [problem("error", subject, plugin["detail"], _repair(plugin))]
    if missing := [need["text"] for need in plugin["requirements"] if not need["met"]]:
        step = remedy(plugin["origin"]["distribution"], missing)
        text = f"needs {', '.join(missing)}"
    elif plugin["state"] == "unavailable":
        step, text = "fla-kernels explain OP shows what runs instead", plugin["detail"]
    else:
        return []
    if severity == "note":
        step = f"nothing, unless there is a device of type {' or '.join(targets)}; then {step}"
    return [problem(severity, subject, text, step)]


def _remarks(plugin: Row) -> list[Row]:
    """What was found about a plugin that may well work."""
    subject, distribution = f"plugin {plugin['name']}", plugin["origin"]["distribution"]
    report = f"report it to the author of {distribution}"
    found = []
    if plugin["doctor_error"]:
        found.append(problem("warning", subject, plugin["doctor_error"], report))
    for note in plugin["notes"]:
        again = f"pip uninstall {distribution} until none is left, then install it again"
        found.append(problem("warning", subject, note, again if "shadowed" in note else report))
    return found


def _repair(plugin: Row) -> str:
    name, distribution = plugin["name"], plugin["origin"]["distribution"]
    without = f"FLA_PLUGINS=-{name} goes on without it"
    detail = plugin["detail"]
    if "upgrade fla-kernels-core" in detail:
        return f"install a newer fla-kernels-core; until then {without}"
    if "taken by" in detail:
        return f"uninstall one of the two distributions: pip uninstall {distribution}"
    module = plugin["module"].partition(":")[0]
    show = f"python -c 'import {module}' shows the whole error; " if "load:" in detail else ""
    return f"{show}install {distribution} again; until then {without}"
