"""Which architectures somebody has kernels for, by device type: what plugins declare, no table."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from fla_core.dispatch.runtime import backends
from fla_core.errors import ContractError

EXTRAS = {
    "cuda": (("cuda", "NVIDIA", "sm[0-9]*"), ("rocm", "AMD", "gfx[0-9]*")),
    "xpu": (("xpu", "Intel", "*"),),
}
"""Extras of the metapackage that bring kernels, whose chips they are for and how those are called.

By device type, as torch names it; AMD devices are ``cuda`` too.
"""


def known() -> dict[str, tuple[str, ...]]:
    """Patterns of architectures by device type; ``*`` where all are served.

    An extra counts by how its chips are called while no plugin of its name says which it has.
    """
    found: dict[str, dict[str, None]] = {}
    asked = [r for r in backends() if r.backend is not None and not r.built_in]
    for record in asked:
        patterns = [arch for one in record.implementations for arch in one.arch or ("*",)]
        for target in record.backend.targets if record.backend else ():
            found.setdefault(target, {}).update(dict.fromkeys(patterns))
    say = {record.name for record in asked if record.implementations}
    for target, extras in EXTRAS.items():
        chips = [pattern for name, _, pattern in extras if name not in say]
        found.setdefault(target, {}).update(dict.fromkeys(chips))
    return {target: tuple(patterns) for target, patterns in found.items() if patterns}


def check(operator: str, arch: str, device: str) -> None:
    """Check that somebody knows an architecture of a device type.

    Raises:
        ContractError: nobody does; it names those that are known.
    """
    patterns = known().get(device, ())
    if not _matches(arch, patterns):
        raise _unknown(operator, arch, {device: patterns})


def device_type(operator: str, arch: str) -> str:
    """The device type, as torch names it, whose plugins name an architecture.

    Raises:
        ContractError: none does; it names those that are known.
    """
    named = {kind: [p for p in patterns if p != "*"] for kind, patterns in known().items()}
    for kind, patterns in named.items():
        if _matches(arch, patterns):
            return kind
    raise _unknown(operator, arch, named)


def _matches(arch: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(arch, pattern) for pattern in patterns)


def _unknown(operator: str, arch: str, named: Mapping[str, Sequence[str]]) -> ContractError:
    each = [f"{', '.join(patterns)} ({kind})" for kind, patterns in named.items() if patterns]
    if each:
        expected = f"one that somebody installed knows: {'; '.join(each)}"
    else:
        expected = f"none: nobody installed tells architectures of {', '.join(named)} apart"
    every = [pattern for patterns in named.values() for pattern in patterns]
    lower = arch.lower()
    close = [lower] if _matches(lower, every) else difflib.get_close_matches(lower, every, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return ContractError(operator, "arch", expected, f"{arch!r}{hint}")
