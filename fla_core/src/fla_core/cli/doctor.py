"""``fla-kernels doctor``: what is installed, what works, and what to do about the rest.

JSON:

``ok``            false when a plugin is broken, torch cannot be used or a setting cannot be read
``versions``      list of ``name``, ``version``, ``note``
``devices``       list of ``device``, ``name``, ``arch``
``settings``      list of ``name``, ``value``, ``origin``
``variables``     list of ``name``, ``value``, ``note``: other ``FLA_*`` variables
``plugins``       list with the keys of :meth:`fla_core.plugins.record.PluginRecord.to_json` and
                  ``module``, ``requirements`` (``text``, ``met``, ``problem``), ``validity``
                  (``implementation``, ``direction``, ``arch``, ``toolchain``, ``status``,
                  ``reason``, ``applies``: a device and toolchain of this machine go by the row,
                  which the first that fits decides), ``doctor`` (what the plugin reports),
                  ``doctor_error``
``problems``      list of ``severity`` (``error``, ``warning``, ``note``), ``subject``, ``text``,
                  ``next``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from fla_core.cli import _view

if TYPE_CHECKING:
    from rich.console import Console


@_view.command
def doctor(as_json: _view.Json = False) -> None:
    """Check versions, devices, settings and every plugin; name problems and what to do.

    Plugins are loaded and probed in a child process, so that one that crashes is a line of the
    report. Exit code 1 when something is broken.
    """
    from fla_core.cli._diagnosis import diagnose

    report = diagnose()
    if as_json:
        _view.emit(report)
    else:
        _show(_view.console(), report)
    if not report["ok"]:
        raise typer.Exit(1)


def _show(to: Console, report: dict[str, Any]) -> None:
    _section(to, "Versions", report["versions"], ("name", "version", "note"))
    _section(to, "Devices", report["devices"], ("device", "name", "arch"))
    _section(to, "Settings", report["settings"], ("name", "value", "origin"))
    _section(to, "Other FLA_* variables", report["variables"], ("name", "value", "note"))
    present = {device["device"].partition(":")[0] for device in report["devices"]}
    for plugin in report["plugins"]:
        _plugin(to, plugin, present)
    _view.heading(to, "Problems")
    if not report["problems"]:
        to.print("none", style="green")
    for problem in report["problems"]:
        to.print(_view.styled(problem["severity"]), problem["subject"])
        _view.pairs(to, [("what", problem["text"]), ("next", problem["next"])])


def _section(to: Console, title: str, rows: list[dict[str, str]], keys: tuple[str, ...]) -> None:
    if rows:
        _view.heading(to, title)
        _view.table(to, keys, [[row[key] for key in keys] for row in rows])


def _plugin(to: Console, plugin: dict[str, Any], present: set[str]) -> None:
    from rich.text import Text

    to.print()
    to.print(Text.assemble(("Plugin ", "bold"), (plugin["name"], "bold"), "  "), end="")
    to.print(_view.styled(plugin["state"]))
    origin, card = plugin["origin"], plugin["backend"] or {}
    words = {"editable": "(editable)", "built_in": "(built in)"}
    notes = [word for note, word in words.items() if origin[note]]
    source = " ".join(filter(None, (origin["distribution"], origin["version"], *notes)))
    rows = [("why", plugin["detail"]), ("from", source)]
    rows.append(("serves", ", ".join(card.get("targets", ()))))
    rows.append(("toolchain", card.get("toolchain", "")))
    contracts = dict.fromkeys(name.partition("#")[0] for name in plugin["implementations"])
    rows.append(("computes", ", ".join(contracts)))
    rows += [("needs", f"{r['text']}: {r['problem'] or 'met'}") for r in plugin["requirements"]]
    rows += [("probe", _probe(device, p)) for device, p in plugin["probes"].items()]
    rows.append(("probe", _unused(plugin, present)))
    rows += [(row["status"], _validity(row)) for row in plugin["validity"]]
    rows += [(str(label), str(text)) for label, text in plugin["doctor"].items()]
    rows.append(("doctor", plugin["doctor_error"]))
    rows += [("note", note) for note in plugin["notes"]]
    _view.pairs(to, rows)


def _probe(device: str, probe: dict[str, Any]) -> str:
    versions = [f"{name} {version}" for name, version in probe["versions"].items()]
    words = [device, "ok" if probe["ok"] else "no", probe["arch"], probe["reason"], *versions]
    return ", ".join(filter(None, words))


def _unused(plugin: dict[str, Any], present: set[str]) -> str:
    """Why a plugin that could serve was not asked; ``""`` for any other."""
    targets = (plugin["backend"] or {}).get("targets", ())
    if plugin["state"] != "loaded" or present.intersection(targets):
        return ""
    return f"not asked, and unused: there is no device of type {' or '.join(targets)} here"


def _validity(row: dict[str, Any]) -> str:
    """``kda backward on x86 with triton<3.6 (here): why``; what is not named is everything else."""
    what = row["implementation"].partition(":")[2].removesuffix("#*")
    what, direction, arch, toolchain = (
        "" if text == "*" else text
        for text in (what, row["direction"], row["arch"], row["toolchain"])
    )
    if toolchain.isidentifier():  # any version of it
        toolchain = ""
    words = [
        what,
        direction,
        f"on {arch}" if arch else "",
        f"with {toolchain}" if toolchain else "",
    ]
    scope = " ".join(filter(None, words)) or "everything else"
    here = " (here)" if row["applies"] else ""
    return ": ".join(filter(None, (f"{scope}{here}", row["reason"])))
