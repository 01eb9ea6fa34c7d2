"""The one object that holds what dispatch remembers between calls."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fla_core.contract import Contract
from fla_core.dispatch import context
from fla_core.dispatch.candidates import Known, known
from fla_core.dispatch.settings import Settings, read_settings
from fla_core.dispatch.trace import Trace
from fla_core.plugins.discover import reference_record
from fla_core.plugins.probe import PROBE_TIMEOUT
from fla_core.plugins.record import PluginRecord
from fla_core.plugins.registry import Registry


class Runtime:
    """Settings, plugins and plans of a process.

    Attributes:
        plans: plan by key, read without a lock. Dropping the plans replaces the dict, so that a
            plan that was in the making at that moment ends in the old one.
        known: what is known of each contract, by name; replaced likewise.
        said: notices already given.
        listeners: called when plans are dropped, for those who keep plans of their own.
        probe_timeout: seconds a plugin may take to answer for a device.
    """

    def __init__(
        self,
        discover: Callable[[], Registry] = Registry.discovered,
        environ: Mapping[str, str] = os.environ,
        probe_timeout: float = PROBE_TIMEOUT,
    ) -> None:
        self.probe_timeout = probe_timeout
        self.plans: dict[Any, Any] = {}
        self.known: dict[str, Known] = {}
        self.said: set[Any] = set()
        self.listeners: list[Callable[[], object]] = []
        self._discover = discover
        self._environ = environ
        self._settings: Settings | None = None
        self._trace: Trace | None = None
        self._registry: Registry | None = None
        self._lock = threading.RLock()

    @property
    def settings(self) -> Settings:
        """The environment's settings, read at first use."""
        if self._settings is None:
            self._settings = read_settings(self._environ)
        return self._settings

    @property
    def trace(self) -> Trace:
        """Where decisions and calls are reported."""
        if self._trace is None:
            self._trace = Trace.checked(self.settings.trace, self.settings.trace_path)
        return self._trace

    @property
    def registry(self) -> Registry:
        """All plugins, filtered by ``FLA_PLUGINS``, discovered at first use and not yet loaded."""
        if self._registry is None:
            with self._lock:
                if self._registry is None:
                    self._registry = self._filtered(self._discover(), self.settings)
        return self._registry

    def contract(self, contract: Contract) -> Known:
        """Load the plugins and return what they have for a contract."""
        found = self.known.get(contract.name)
        if found is None:
            into = self.known
            self.registry.load()
            found = into[contract.name] = known(contract, self.registry)
        return found

    def reload_env(self) -> None:
        """Read the environment again and drop every plan made under the old one."""
        settings = read_settings(self._environ)
        with self._lock:
            if self._registry is not None:
                self._filtered(self._registry, settings)
            self._settings, self._trace = settings, None
            self.forget_plans()
        context.environment_text = settings.backend

    def reload_plugins(self) -> None:
        """Discover the installed plugins again and drop every plan."""
        with self._lock:
            self._registry = None
            self.forget_plans()

    def forget_plans(self) -> None:
        """Drop plans and what they were made from; they are made again on demand."""
        self.plans = {}
        self.known = {}
        for listener in self.listeners:
            listener()

    def after_fork(self) -> None:
        """Drop what a child process cannot share with its parent."""
        self._lock = threading.RLock()
        if self._registry is not None:
            self._registry.forget_devices()
        self.forget_plans()

    @staticmethod
    def _filtered(registry: Registry, settings: Settings) -> Registry:
        settings.plugins.check(registry.names)
        registry.exclude(settings.plugins.rule_for)
        return registry


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


@contextmanager
def sandbox(
    *plugins: PluginRecord,
    environ: Mapping[str, str] | None = None,
    probe_timeout: float = PROBE_TIMEOUT,
) -> Iterator[Runtime]:
    """Dispatch among these plugins and the reference only, under this environment only.

    For tests and for the conformance suite; the process's own plugins, plans and settings come back
    at the end. It concerns every thread.
    """
    registry = Registry([reference_record(), *plugins])
    fresh = Runtime(lambda: registry, {} if environ is None else environ, probe_timeout)
    fresh.listeners = RUNTIME.listeners
    outer, outer_text = dict(vars(RUNTIME)), context.environment_text
    try:
        vars(RUNTIME).update(vars(fresh))
        context.environment_text = ""
        RUNTIME.forget_plans()
        yield RUNTIME
    finally:
        vars(RUNTIME).update(outer)
        context.environment_text = outer_text
        RUNTIME.forget_plans()


def backends() -> tuple[PluginRecord, ...]:
    """The records of all plugins, loaded where they can be; the built-in reference comes first."""
    RUNTIME.registry.load()
    return RUNTIME.registry.records


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=RUNTIME.after_fork)
