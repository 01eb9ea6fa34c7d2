"""What is known of one plugin: where it comes from, how far it got, and why it stopped."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from fla_core.plugins.api import Backend, Implementation, Probe, Validity


class State(str, Enum):
    """How far a plugin got. The last three last until settings change."""

    FOUND = "found"
    LOADED = "loaded"
    PROBED = "probed"
    BROKEN = "broken"
    UNAVAILABLE = "unavailable"
    EXCLUDED = "excluded"


@dataclass(frozen=True, slots=True)
class Origin:
    """The installed distribution a plugin comes from."""

    distribution: str
    version: str = ""
    editable: bool = False
    built_in: bool = False

    def __str__(self) -> str:
        notes = [
            note for note, on in (("editable", self.editable), ("built in", self.built_in)) if on
        ]
        text = f"{self.distribution} {self.version}".rstrip()
        return f"{text} ({', '.join(notes)})" if notes else text


@dataclass(frozen=True, slots=True)
class Failure:
    """An error a plugin made: the phase (``discover``, ``load``, ``probe``) and its cause."""

    phase: str
    text: str
    cause: BaseException | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # A cause may hold frames and unpicklable members; its text carries what a reader needs.
        return Failure, (self.phase, self.text)


@dataclass(slots=True, eq=False)
class PluginRecord:
    """One plugin and its state.

    Attributes:
        name: name of its entry point, what ``FLA_BACKEND`` calls it.
        origin: distribution that brought it.
        target: module to import, ``"package.module"`` or ``"package.module:attribute"``.
        backend: its card, once loaded.
        implementations: what it can compute.
        validity: its known-good and known-bad pairs of compiler and chip.
        probes: answers by device (``"cuda:0"``).
        failure: set when it is broken.
        unavailable: why it cannot serve although it is not broken (a missing requirement).
        rule: the setting that excludes it.
        notes: further findings for ``doctor`` (shadowed duplicates and the like).
        module: the registered module; hooks are called on it.
    """

    name: str
    origin: Origin
    target: str
    backend: Backend | None = None
    implementations: tuple[Implementation, ...] = ()
    validity: tuple[Validity, ...] = ()
    probes: dict[str, Probe] = field(default_factory=dict)
    failure: Failure | None = None
    unavailable: str = ""
    rule: str = ""
    notes: list[str] = field(default_factory=list)
    module: Any = None
    hooks: Any = None
    lock: Any = field(default_factory=threading.RLock, repr=False)

    @property
    def state(self) -> State:
        """The state, derived from what is recorded."""
        if self.rule:
            return State.EXCLUDED
        if self.failure is not None:
            return State.BROKEN
        if self.unavailable:
            return State.UNAVAILABLE
        if self.probes:
            usable = any(probe.ok for probe in self.probes.values())
            return State.PROBED if usable else State.UNAVAILABLE
        return State.FOUND if self.backend is None else State.LOADED

    @property
    def built_in(self) -> bool:
        """True for the reference, which serves every device and needs no probe."""
        return self.origin.built_in

    @property
    def priority(self) -> int:
        """Place under automatic selection; a plugin without a card goes last."""
        return 1_000_000 if self.backend is None else self.backend.priority

    def serves(self, device_type: str) -> bool:
        """True when the card names this device type."""
        return self.built_in or (self.backend is not None and device_type in self.backend.targets)

    def breaks(self, phase: str, text: str, cause: BaseException | None = None) -> None:
        """Mark the plugin broken; the first failure is the one that is kept."""
        if self.failure is None:
            self.failure = Failure(phase, text, cause)

    @property
    def detail(self) -> str:
        """Why the plugin is in its state; ``""`` when there is nothing to say."""
        if self.rule:
            return self.rule
        if self.failure is not None:
            return f"{self.failure.phase}: {self.failure.text}"
        if self.unavailable:
            return self.unavailable
        refused = [f"{device}: {p.reason}" for device, p in self.probes.items() if not p.ok]
        return "; ".join(refused)

    def summary(self) -> str:
        """State and cause in one line."""
        detail = " ".join(self.detail.split())
        return f"{self.state.value}: {detail}" if detail else self.state.value

    def to_json(self) -> dict[str, Any]:
        """Everything above as plain data."""
        return {
            "name": self.name,
            "state": self.state.value,
            "detail": self.detail,
            "origin": {
                "distribution": self.origin.distribution,
                "version": self.origin.version,
                "editable": self.origin.editable,
                "built_in": self.origin.built_in,
            },
            "backend": _card(self.backend),
            "implementations": [f"{i.contract}#{i.variant}" for i in self.implementations],
            "probes": {device: _probe(probe) for device, probe in self.probes.items()},
            "notes": list(self.notes),
        }

    def __getstate__(self) -> Mapping[str, Any]:
        unpicklable = {"module", "hooks", "lock", "implementations"}
        return {name: getattr(self, name) for name in self.__slots__ if name not in unpicklable}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self.module = self.hooks = None
        self.implementations = ()
        self.lock = threading.RLock()


def _card(backend: Backend | None) -> dict[str, Any] | None:
    if backend is None:
        return None
    return {
        "name": backend.name,
        "targets": list(backend.targets),
        "toolchain": backend.toolchain,
        "requires": list(backend.requires),
        "priority": backend.priority,
        "api": backend.api,
        "description": backend.description,
    }


def _probe(probe: Probe) -> dict[str, Any]:
    return {
        "ok": probe.ok,
        "reason": probe.reason,
        "arch": probe.arch,
        "versions": dict(probe.versions),
    }
