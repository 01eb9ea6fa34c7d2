"""Implementations as dispatch sees them, prepared once: id, effective domain, functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

from fla_core.contract import Contract
from fla_core.domain import AXES, Domain
from fla_core.plugins.api import Implementation
from fla_core.plugins.load import load_callable
from fla_core.plugins.record import PluginRecord
from fla_core.plugins.registry import Registry


class Candidate:
    """One implementation of one plugin.

    Attributes:
        record: the plugin.
        implementation: what the plugin declared.
        identity: ``plugin:contract#variant``.
        domain: what the declared domain asks for beyond the contract's, which has been checked
            before; a range copied from the contract would otherwise make a plan for every length.
        axes: axes on which its answer depends.
    """

    __slots__ = ("_functions", "axes", "domain", "identity", "implementation", "record")

    def __init__(
        self, contract: Contract, record: PluginRecord, implementation: Implementation
    ) -> None:
        self.record, self.implementation = record, implementation
        self.identity = f"{record.name}:{implementation.contract}#{implementation.variant}"
        self.domain = beyond(implementation.domain, contract.domain)
        self.axes = self.domain.constrained_axes() | frozenset(implementation.reads)
        if "H" in self.axes and "HV" in contract.domain.axes:
            self.axes |= {"HV"}  # what H becomes when grouped heads are lowered
        self._functions: dict[str, Any] = {}

    def function(self, role: str) -> Any:
        """``forward``, ``backward``, ``residuals`` or ``verifier``, imported once; None if absent.

        A failing import leaves the plugin broken: read ``record.failure``.
        """
        if role not in self._functions:
            target = getattr(self.implementation, role)
            self._functions[role] = load_callable(self.record, target)
        return self._functions[role]


def beyond(domain: Domain, outer: Domain) -> Domain:
    """The part of a domain that can still refuse a call which ``outer`` has accepted."""
    axes = {
        axis: allowed
        for axis, allowed in domain.axes.items()
        if axis not in outer.axes or not outer.axes[axis].within(allowed)
    }
    relations = tuple(r for r in domain.relations if r not in outer.relations)
    return Domain(domain.dtypes, axes, relations, domain.features)


def collect(contract: Contract, registry: Registry) -> tuple[Candidate, ...]:
    """Every implementation of a contract among the loaded plugins."""
    return tuple(
        Candidate(contract, record, implementation)
        for record in registry
        for implementation in record.implementations
        if implementation.contract == contract.name
    )


def picker(candidates: Iterable[Candidate]) -> Callable[[tuple[Any, ...]], Any]:
    """The function that reduces all sizes to those on which some candidate depends."""
    constrained: frozenset[str] = frozenset().union(*(c.axes for c in candidates))
    indices = [i for i, axis in enumerate(AXES) if axis in constrained]
    return itemgetter(*indices) if indices else _nothing


def picked(candidates: Iterable[Candidate], sizes: tuple[Any, ...]) -> dict[str, Any]:
    """The same reduction with its letters."""
    constrained = frozenset().union(*(c.axes for c in candidates))
    return {axis: n for axis, n in zip(AXES, sizes, strict=True) if axis in constrained}


def _nothing(sizes: tuple[Any, ...]) -> None:
    return None
