"""The calls that are timed: every operator that a plugin declares, at shapes by name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

import torch

from fla_conformance.run import Target, targets
from fla_conformance.suite import matching
from fla_core.cli.calls.bench import anchor, recipes
from fla_core.cli.calls.bench.recipes import Recipe
from fla_core.cli.calls.bench.workload import Workload
from fla_core.contracts import CONTRACTS
from fla_core.dispatch.runtime import backends, sandbox
from fla_core.plugins import Implementation, hookimpl
from fla_core.plugins.discover import in_memory

AXES = ("B", "T", "H", "HV", "K", "V")
SHAPES: dict[str, tuple[int, ...]] = {
    "main": (2, 8192, 16, 16, 128, 128),
    "long": (1, 32768, 16, 16, 128, 128),
    "wide": (8, 2048, 32, 32, 64, 64),
    "small": (1, 512, 16, 16, 128, 128),
    "varlen": (1, 32768, 16, 16, 128, 128),
    "prefill": (1, 8192, 32, 32, 128, 128),
    "gva2": (2, 8192, 8, 16, 128, 128),
    "gva4": (2, 8192, 4, 16, 128, 128),
}
PACKED = {"varlen": 32}
"""Sequences of mixed lengths in the packed shapes."""

DECODED = (1, 64)
"""Batch sizes of a decode step of 32 heads."""


@contextmanager
def narrowed(plugin: str, variant: str) -> Iterator[None]:
    """Leave of a plugin one variant of its implementations; all of them if none is named."""
    if not variant:
        yield
        return
    known = next(record for record in backends() if record.name == plugin).module
    narrow = ModuleType(plugin)
    for name, hook in vars(known).items():
        if name.startswith("fla_") and callable(hook):
            setattr(narrow, name, hook)

    @hookimpl
    def fla_implementations() -> Iterable[Implementation]:
        return [one for one in known.fla_implementations() if one.variant == variant]

    narrow.fla_implementations = fla_implementations  # type: ignore[attr-defined]
    with sandbox(in_memory(plugin, narrow), environ=os.environ):
        yield


def chosen(plugin: str, device: str, ops: Sequence[str]) -> list[Target]:
    """The plugin's implementations whose id, contract or public name matches a glob."""
    known = targets(plugin, device)
    found = {t.implementation: t for pattern in ops for t in matching(known, pattern)}
    return list(found.values())


def timed_recipes(contract: str) -> list[Recipe]:
    """Every way to call a contract's chunked operators; names that are timed alike left out."""
    names = [name for name, form in CONTRACTS[contract].public if form == "chunk"]
    aliases = dict(CONTRACTS[contract].aliases)
    kept = [n for n in names if n.startswith("chunk") and n not in aliases and "lightning" not in n]
    return [recipe for name in kept for recipe in recipes.recipes(name)]


def workloads(contract: str, shapes: Sequence[str], dtype: torch.dtype) -> Iterator[Workload]:
    """The calls of a contract at the named shapes."""
    for name in shapes:
        sizes = dict(zip(AXES, SHAPES[name], strict=True))
        if "HV" not in CONTRACTS[contract].domain.axes and sizes.pop("HV") != sizes["H"]:
            continue
        count = PACKED.get(name)
        lengths = None if count is None else recipes.mixed_lengths(sizes["T"], count)
        for recipe in timed_recipes(contract):
            yield Workload(recipe, sizes, lengths, dtype)


def steps(contract: str, dtype: torch.dtype) -> Iterator[Workload]:
    """The decode steps of a contract."""
    names = [name for name, form in CONTRACTS[contract].public if form == "recurrent"]
    for batch in DECODED:
        sizes = dict(zip(AXES, (batch, 1, 32, 32, 128, 128), strict=True))
        if "HV" not in CONTRACTS[contract].domain.axes:
            del sizes["HV"]
        yield Workload(recipes.stepped(names[0]), sizes, None, dtype)


def anchors(listed: Iterable[tuple[Workload, str]]) -> list[tuple[Workload, str]]:
    """Softmax attention at the first shape that is neither packed nor a decode step."""
    dense = (call for call, direction in listed if call.lengths is None and direction != "decode")
    first = next(dense, None)
    if first is None:
        return []
    sizes = {axis: size for axis, size in first.sizes.items() if axis != "HV"}
    workload = Workload(anchor.RECIPE, sizes, None, first.dtype)
    return [(workload, direction) for direction in ("both", "fwd")]


def timed_calls(
    contracts: Iterable[str], shapes: Sequence[str], decode: bool, dtype: torch.dtype
) -> list[tuple[Workload, str]]:
    """Every call that is timed with its direction, shape by shape in the order asked for."""
    wanted = list(contracts)
    found = [
        (workload, direction)
        for shape in shapes
        for contract in wanted
        for workload in workloads(contract, [shape], dtype)
        for direction in ("both", "fwd")
    ]
    if decode:
        found += [(one, "decode") for contract in wanted for one in steps(contract, dtype)]
    return found
