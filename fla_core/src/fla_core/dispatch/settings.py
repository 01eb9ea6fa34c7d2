"""The environment variables of dispatch, read together and once.

``FLA_BACKEND``
    selection policy, see :mod:`fla_core.dispatch.policy`.
``FLA_PLUGINS``
    names of the plugins that may load (``cuda,acme``), or of those that may not (``-acme``), or
    ``none``. The built-in reference is always there.
``FLA_TRACE``
    ``off``, ``decisions`` (each new plan) or ``calls`` (also each call), to stderr; with
    ``:PATH`` appended (``decisions:/tmp/plans.jsonl``), as JSON lines to that file.
``FLA_DISABLE_BACKEND_DISPATCH``
    ``1`` is the same as ``FLA_BACKEND=reference``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fla_core.errors import PolicyError, UnknownBackendError
from fla_core.plugins.discover import REFERENCE

OURS = ("FLA_BACKEND", "FLA_PLUGINS", "FLA_TRACE", "FLA_DISABLE_BACKEND_DISPATCH")

PEERS = frozenset({
    "FLA_TILELANG",
    "FLA_CI_ENV",
    "FLA_FLASH_KDA",
    "FLA_FLASH_QLA",
    "FLA_INTRACARD_CP",
})  # fmt: skip
"""Variables of another library with the same prefix; they are its own."""

TRACE_LEVELS = ("off", "decisions", "calls")


@dataclass(frozen=True, slots=True)
class PluginFilter:
    """Which plugins may load: only ``allowed`` (None: all), and none of ``denied``."""

    text: str = ""
    allowed: frozenset[str] | None = None
    denied: frozenset[str] = frozenset()

    def rule_for(self, name: str) -> str:
        """The rule that excludes a plugin, or ``""``."""
        excluded = name in self.denied or (self.allowed is not None and name not in self.allowed)
        return f'FLA_PLUGINS="{self.text}"' if excluded else ""

    def check(self, installed: Iterable[str]) -> None:
        """Raise UnknownBackendError for a name that looks misspelt.

        A denied plugin that is not installed is fine, unless it resembles one that is.
        """
        known = set(installed)
        for name in sorted((self.allowed or frozenset()) | self.denied):
            close = misspelt(name, known)
            if name not in known and (close or name not in self.denied):
                hint = f"did you mean {close!r}?" if close else f"installed: {_list(known)}"
                problem = f"no plugin {name!r} is installed"
                raise UnknownBackendError(self.text, "FLA_PLUGINS", problem, hint)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything dispatch takes from the environment."""

    backend: str = ""
    backend_variable: str = ""
    plugins: PluginFilter = PluginFilter()
    trace: str = "off"
    trace_path: str = ""


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read our variables from an environment.

    Raises:
        PolicyError: a value cannot be understood, or a variable's name is nearly one of ours.
    """
    _check_names(environ)
    backend, variable = environ.get("FLA_BACKEND", "").strip(), "FLA_BACKEND"
    if _switch(environ, "FLA_DISABLE_BACKEND_DISPATCH"):
        backend, variable = _disabled(backend), "FLA_DISABLE_BACKEND_DISPATCH"
    trace, path = _trace(environ.get("FLA_TRACE", ""))
    return Settings(
        backend=backend,
        backend_variable=variable if backend else "",
        plugins=_plugin_filter(environ.get("FLA_PLUGINS", "")),
        trace=trace,
        trace_path=path,
    )


def _disabled(backend: str) -> str:
    if backend not in ("", "reference"):
        problem = "FLA_DISABLE_BACKEND_DISPATCH=1 means 'reference'; the two contradict each other"
        raise PolicyError(backend, "FLA_BACKEND", problem, "unset one of them")
    return "reference"


def _switch(environ: Mapping[str, str], name: str) -> bool:
    value = environ.get(name, "").strip()
    if value not in ("", "0", "1"):
        raise PolicyError(value, name, f"must be 0 or 1, got {value!r}")
    return value == "1"


def _plugin_filter(text: str) -> PluginFilter:
    text = text.strip()
    items = [item.strip() for item in text.split(",")] if text else []
    if not items:
        return PluginFilter()
    if items == ["none"]:
        return PluginFilter(text, allowed=frozenset())
    denied = frozenset(item[1:] for item in items if item.startswith("-"))
    allowed = frozenset(item for item in items if not item.startswith("-"))
    if "" in denied | allowed:
        raise PolicyError(text, "FLA_PLUGINS", "an item is empty", "separate names by one comma")
    if "none" in denied | allowed:
        raise PolicyError(text, "FLA_PLUGINS", "'none' stands alone")
    if REFERENCE in denied:
        problem = f"'-{REFERENCE}': the built-in reference is always there"
        hint = f"FLA_BACKEND=auto,-{REFERENCE} keeps it from being chosen"
        raise PolicyError(text, "FLA_PLUGINS", problem, hint)
    if denied and allowed:
        problem = "names that may load and names that may not cannot be mixed"
        raise PolicyError(text, "FLA_PLUGINS", problem, "a list of names is closed already")
    return PluginFilter(text, denied=denied) if denied else PluginFilter(text, allowed=allowed)


def _trace(text: str) -> tuple[str, str]:
    level, _, path = text.strip().partition(":")
    if path and not level:
        hint = f"write decisions:{path} or calls:{path}"
        raise PolicyError(text, "FLA_TRACE", "a level is missing before the colon", hint)
    level = level or "off"
    if level not in TRACE_LEVELS:
        hint = "a file for JSON lines follows a colon: decisions:/tmp/plans.jsonl"
        problem = f"must be one of {', '.join(TRACE_LEVELS)}, got {level!r}"
        raise PolicyError(text, "FLA_TRACE", problem, hint)
    return level, path


def _check_names(environ: Mapping[str, str]) -> None:
    for name in sorted(environ):
        if not name.startswith("FLA_") or name in OURS or name in PEERS:
            continue
        for ours in OURS:
            if edit_distance(name, ours) <= 2:
                problem = f"{name} is not a variable of fla-kernels"
                raise PolicyError(environ[name], name, problem, f"did you mean {ours}?")


def misspelt(name: str, known: Iterable[str]) -> str:
    """The known name that ``name`` was probably meant to be; ``""`` if it resembles none."""
    # The ratio keeps short names apart: xpu and npu are two backends, not one and a slip.
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    return close[0] if close else ""


def edit_distance(a: str, b: str) -> int:
    """Least number of insertions, deletions and replacements between two words."""
    previous = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        row = [i]
        for j, right in enumerate(b, 1):
            replaced = previous[j - 1] + (left != right)
            row.append(min(previous[j] + 1, row[-1] + 1, replaced))
        previous = row
    return previous[-1]


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
