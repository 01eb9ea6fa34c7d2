"""All plugin records of the process, loaded on demand and filtered by ``FLA_PLUGINS``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from fla_core.plugins import discover
from fla_core.plugins.load import load
from fla_core.plugins.record import PluginRecord

Exclusion = Callable[[str], str]
"""Maps a plugin's name to the rule that excludes it, or ``""``."""


class Registry:
    """Records in the order in which they were discovered, the reference first."""

    __slots__ = ("_by_name", "_loaded", "_lock", "records")

    def __init__(self, records: Iterable[PluginRecord]) -> None:
        self.records = tuple(records)
        self._lock = threading.RLock()
        self._loaded = False
        self._by_name: dict[str, PluginRecord] = {}
        for record in self.records:
            self._by_name.setdefault(record.name, record)

    @classmethod
    def discovered(cls) -> Registry:
        """The plugins installed in this environment."""
        return cls(discover.discover())

    def __iter__(self) -> Iterator[PluginRecord]:
        return iter(self.records)

    def get(self, name: str) -> PluginRecord | None:
        """The record a policy means by ``name``."""
        return self._by_name.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Names a policy may use."""
        return tuple(self._by_name)

    def exclude(self, rule_for: Exclusion) -> None:
        """Apply the rules of ``FLA_PLUGINS``; the built-in reference always stays."""
        with self._lock:
            self._loaded = False
            for record in self.records:
                record.rule = "" if record.built_in else rule_for(record.name)

    def load(self) -> None:
        """Load every plugin that may be loaded, each in its own guard."""
        with self._lock:
            if not self._loaded:
                for record in self.records:
                    load(record)
                self._loaded = True

    def forget_devices(self) -> None:
        """Drop answers about devices; a forked child cannot use its parent's."""
        for record in self.records:
            record.lock = threading.RLock()
            record.probes.clear()
            if record.failure is not None and record.failure.phase == "probe":
                record.failure = None
        self._lock = threading.RLock()
