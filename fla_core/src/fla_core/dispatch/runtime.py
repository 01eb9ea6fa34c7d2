"""The one object that holds what dispatch remembers between calls."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from fla_core.dispatch import context
from fla_core.dispatch.settings import Settings, read_settings
from fla_core.plugins.probe import PROBE_TIMEOUT
from fla_core.plugins.registry import Registry


class Runtime:
    """Settings, plugins and plans of a process.

    Attributes:
        plans: plan by key; read without a lock.
        pickers: by contract, the function that picks from all sizes those a plan depends on.
        candidates: by contract, every implementation of every plugin.
        said: notices already given.
        listeners: called when plans are dropped, for those who keep plans of their own.
        probe_timeout: seconds a plugin may take to answer for a device.
    """

    def __init__(
        self,
        discover: Callable[[], Registry] = Registry.discovered,
        environ: Mapping[str, str] | None = None,
        probe_timeout: float = PROBE_TIMEOUT,
    ) -> None:
        self.probe_timeout = probe_timeout
        self.plans: dict[Any, Any] = {}
        self.pickers: dict[str, Callable[[tuple[Any, ...]], Any]] = {}
        self.candidates: dict[str, Any] = {}
        self.said: set[Any] = set()
        self.listeners: list[Callable[[], object]] = []
        self._discover = discover
        self._environ = os.environ if environ is None else environ
        self._settings: Settings | None = None
        self._registry: Registry | None = None
        self._lock = threading.RLock()

    @property
    def settings(self) -> Settings:
        """The environment's settings, read at first use."""
        if self._settings is None:
            self._settings = read_settings(self._environ)
        return self._settings

    @property
    def registry(self) -> Registry:
        """All plugins, filtered by ``FLA_PLUGINS``, discovered at first use and not yet loaded."""
        if self._registry is None:
            with self._lock:
                self._registry = self._registry or self._filtered(self._discover())
        return self._registry

    def _filtered(self, registry: Registry) -> Registry:
        plugins = self.settings.plugins
        plugins.check(registry.names)
        registry.exclude(plugins.rule_for)
        return registry

    def reload_env(self) -> None:
        """Read the environment again and drop every plan made under the old one."""
        settings = read_settings(self._environ)
        with self._lock:
            self._settings = settings
            if self._registry is not None:
                self._filtered(self._registry)
            self.forget_plans()
        context.environment_text = settings.backend

    def reload_plugins(self) -> None:
        """Discover the installed plugins again and drop every plan."""
        with self._lock:
            self._registry = None
            self.forget_plans()

    def forget_plans(self) -> None:
        """Drop plans and what they were made from; they are made again on demand."""
        self.plans.clear()
        self.pickers.clear()
        self.candidates.clear()
        for listener in self.listeners:
            listener()

    def after_fork(self) -> None:
        """Drop what a child process cannot share with its parent."""
        self._lock = threading.RLock()
        self.forget_plans()
        if self._registry is not None:
            self._registry.forget_devices()


RUNTIME = Runtime()


def on_reset(listener: Callable[[], object]) -> None:
    """Have a function called whenever plans are dropped."""
    RUNTIME.listeners.append(listener)


def reload_env() -> None:
    """Read the ``FLA_*`` variables again; every plan made under the old ones is dropped.

    Raises:
        PolicyError: a variable cannot be understood; the old settings then stay in force.
    """
    RUNTIME.reload_env()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: RUNTIME.after_fork())
