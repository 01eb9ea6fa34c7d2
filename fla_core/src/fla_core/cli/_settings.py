"""The settings in force, where they come from, and what cannot be understood in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fla_core.dispatch.policy import parse
from fla_core.dispatch.settings import OURS, PEERS, Settings, read_settings
from fla_core.dispatch.trace import Trace
from fla_core.errors import PolicyError

DEFAULTS = {
    "FLA_BACKEND": "auto",
    "FLA_PLUGINS": "every plugin",
    "FLA_TRACE": "off",
    "FLA_DISABLE_BACKEND_DISPATCH": "0",
}


def settings_report(
    environ: Mapping[str, str], plugins: Sequence[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return one row a setting, and the problems among them."""
    rows = [
        {
            "name": name,
            "value": environ[name] if environ.get(name, "").strip() else DEFAULTS[name],
            "origin": "environment" if environ.get(name, "").strip() else "default",
        }
        for name in OURS
    ]
    try:
        settings = read_settings(environ)
        if settings.backend_variable == "FLA_DISABLE_BACKEND_DISPATCH":
            rows[0].update(value="reference", origin="FLA_DISABLE_BACKEND_DISPATCH=1")
        _check_names(settings, plugins)
        Trace.checked(settings.trace, settings.trace_path)
    except PolicyError as error:
        unset = f"unset {error.origin}, or correct it"
        text = f"{error.text!r}: {error.problem}"
        step = f"{unset}: {error.hint}" if error.hint else unset
        problem = {"severity": "error", "subject": error.origin, "text": text, "next": step}
        return rows, [problem]
    return rows, []


def _check_names(settings: Settings, plugins: Sequence[str]) -> None:
    from fla_core.dispatch.governing import check_names
    from fla_core.plugins.discover import discover
    from fla_core.plugins.registry import Registry

    settings.plugins.check(plugins)
    if settings.backend:
        policy = parse(settings.backend, settings.backend_variable)
        check_names(policy, Registry(discover()), settings.backend_variable)


def other_variables(environ: Mapping[str, str]) -> list[dict[str, str]]:
    """``FLA_*`` variables that are not ours; they are shown and left alone."""
    return [
        {
            "name": name,
            "value": value,
            "note": "of another library, left alone" if name in PEERS else "unknown, left alone",
        }
        for name, value in sorted(environ.items())
        if name.startswith("FLA_") and name not in OURS
    ]
