"""Implementations as dispatch sees them, prepared once: id, effective domain, functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from fla_core.contract import Contract
from fla_core.domain import AXES, Domain
from fla_core.plugins.api import Implementation
from fla_core.plugins.load import load_callable
from fla_core.plugins.record import PluginRecord
from fla_core.plugins.registry import Registry
from fla_core.verify import CallView


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

    def unknown(self, view: CallView) -> frozenset[str]:
        """Axes it depends on whose size is not known."""
        return frozenset(axis for axis in self.axes if view.axes.get(axis) is None)

    def decidable(self, view: CallView) -> Domain:
        """The part of its domain that rests on known sizes only."""
        unknown = self.unknown(view)
        axes = {axis: range_ for axis, range_ in self.domain.axes.items() if axis not in unknown}
        relations = (r for r in self.domain.relations if not unknown.intersection(r.axes))
        return replace(self.domain, axes=axes, relations=tuple(relations))

    def function(self, role: str) -> Any:
        """A function of the implementation by its field's name, imported once; None if absent.

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


@dataclass(frozen=True, slots=True)
class Known:
    """What dispatch knows of one contract while the set of plugins stays the same.

    Attributes:
        candidates: every implementation.
        pick: reduces all sizes to those on which some candidate depends.
    """

    candidates: tuple[Candidate, ...]
    pick: Callable[[tuple[Any, ...]], Any]

    def axes(self, sizes: tuple[int | None, ...]) -> dict[str, int | None]:
        """The picked sizes with their letters."""
        constrained = _constrained(self.candidates)
        return {axis: n for axis, n in zip(AXES, sizes, strict=True) if axis in constrained}

    def numbers(self, sizes: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """The sizes, symbols among the picked ones as numbers, which torch then guards."""
        picked = self.pick(AXES)
        axes = (picked,) if isinstance(picked, str) else picked or ()
        return tuple(
            n if n is None or axis not in axes else int(n)
            for axis, n in zip(AXES, sizes, strict=True)
        )


def known(contract: Contract, registry: Registry) -> Known:
    """Collect every implementation of a contract among the loaded plugins."""
    found = tuple(
        Candidate(contract, record, implementation)
        for record in registry
        for implementation in record.implementations
        if implementation.contract == contract.name
    )
    constrained = _constrained(found)
    indices = [i for i, axis in enumerate(AXES) if axis in constrained]
    return Known(found, itemgetter(*indices) if indices else _nothing)


def _constrained(candidates: Iterable[Candidate]) -> frozenset[str]:
    return frozenset().union(*(candidate.axes for candidate in candidates))


def _nothing(sizes: tuple[Any, ...]) -> None:
    return None
