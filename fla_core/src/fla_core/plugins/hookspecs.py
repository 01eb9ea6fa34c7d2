"""The hooks a plugin module may implement. pluggy validates names and arguments.

A plugin is a light module named by an entry point of the group ``fla_core.backends``; its functions
are decorated with ``fla_core.plugins.hookimpl``. Only ``fla_backend`` is required.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pluggy

from fla_core.plugins.api import Backend, Implementation, Probe, Validity

PROJECT = "fla_core"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def fla_backend() -> Backend:  # type: ignore[empty-body]
    """Return the plugin's card. Called once, on loading; imports nothing heavy."""


@hookspec
def fla_implementations() -> Iterable[Implementation]:  # type: ignore[empty-body]
    """Return what the plugin can compute. Kernels are named, not imported."""


@hookspec
def fla_validity() -> Iterable[Validity]:  # type: ignore[empty-body]
    """Return known-good and known-bad pairs of compiler and chip."""


@hookspec
def fla_probe(device: str) -> Probe:  # type: ignore[empty-body]
    """Compile and run one tiny kernel on a device (``"cuda:0"``). Called lazily, once each."""


@hookspec
def fla_doctor() -> Mapping[str, Any]:  # type: ignore[empty-body]
    """Return what a person should see in ``fla-kernels doctor``."""


@hookspec
def fla_conformance_device(device: str) -> Any:
    """Return the device adapter of the conformance suite (sync, poison, memory, seed)."""


@hookspec
def fla_conformance_cases(op: str, rng: Any) -> Iterable[Any]:  # type: ignore[empty-body]
    """Return extra conformance cases of one contract; cases cannot be removed."""


@hookspec
def fla_tuner() -> str:  # type: ignore[empty-body]
    """Return ``"module:function"`` from a device to a :class:`fla_core.plugins.tuning.Tuner`."""
