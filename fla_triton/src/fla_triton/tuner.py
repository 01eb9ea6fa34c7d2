"""What ``fla-kernels tune`` asks of the portable kernels: see :mod:`fla_core.plugins.tuning`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from fla_core.contracts import CONTRACTS
from fla_core.errors import UnsupportedError
from fla_core.plugins import Backend, Implementation, Probe, hookimpl
from fla_core.plugins.tuning import Measured, Task
from fla_triton import candidates, declared
from fla_triton.families import FAMILIES
from fla_triton.plan import Problem
from fla_triton.profiles import EVERY, Profile
from fla_triton.tables import SCHEMA, Entry, checked, decode, encode

SIZES = (
    {"B": 1, "T": 32768, "H": 16, "HV": 16, "K": 128, "V": 128},
    {"B": 2, "T": 8192, "H": 16, "HV": 16, "K": 128, "V": 128},
    {"B": 4, "T": 4096, "H": 16, "HV": 16, "K": 128, "V": 128},
    {"B": 8, "T": 2048, "H": 16, "HV": 16, "K": 128, "V": 128},
    {"B": 8, "T": 2048, "H": 32, "HV": 32, "K": 64, "V": 64},
)
"""Calls that are timed: long training rows of the two usual head sizes, and of the larger one as
many heads as leave multiprocessors idle, fill them and fill them several times."""


@dataclass(frozen=True, slots=True)
class Tuner:
    """The portable kernels on one device.

    Attributes:
        package: the backend whose table it is.
        target: type of the device.
        profile: its chip.
        sizes: of the calls that are timed.
        dtypes: of their q, k and v.
    """

    package: str
    target: str
    profile: Profile
    sizes: Sequence[Mapping[str, int]] = SIZES
    dtypes: Sequence[str] = ("bfloat16",)

    @property
    def table(self) -> Path:
        """Where the backend looks for the table of this chip."""
        return Path(str(files(self.package) / "tables" / f"{self.profile.arch}.json"))

    def tasks(self, contracts: Sequence[str]) -> list[Task]:
        """Both directions of every family that serves one of the contracts, gated and not."""
        found: dict[Any, Task] = {}
        for row in declared.ROWS:
            if row.contract not in contracts:
                continue
            operator = CONTRACTS[row.contract].public[0][0]
            for sizes in self.sizes:
                for dtype in self.dtypes:
                    for direction in ("forward", "backward"):
                        known = _known_sizes(row.contract, sizes)
                        key = (row.family, _gated(row.contract), *sizes.values(), dtype, direction)
                        task = Task(row.family, direction, operator, known, dtype)
                        found.setdefault(key, task)
        return list(found.values())

    def candidates(
        self, task: Task, number: int, found: Sequence[Measured]
    ) -> list[dict[str, Any]]:
        """The starts; the neighbours of the best of them; what helped, together."""
        family, problem = FAMILIES[task.family], problem_of(task)
        asked = (family, problem, task.direction, self.profile)
        speeds = [(decode(family.tiles, m.tiles), m.ms) for m in found if m.ms is not None]
        if number == 0:
            return [encode(tiles) for tiles in candidates.starts(*asked)]
        if not speeds or number > 2:
            return []
        first = len(list(candidates.starts(*asked)))
        ranked = [(m.ms, i) for i, m in enumerate(found[:first]) if m.ms is not None]
        if not ranked:
            return []
        base_ms, index = min(ranked)
        base = decode(family.tiles, found[index].tiles)
        if number == 1:
            tried = [m.tiles for m in found]
            near = map(encode, candidates.neighbours(*asked, base))
            return [tiles for tiles in near if tiles not in tried]
        joined = candidates.together(base, base_ms, speeds)
        return [] if joined is None else [encode(joined)]

    def serving(self, task: Task, tiles: Mapping[str, Any]) -> ModuleType:
        """A plugin whose kernels take these tiles in one direction, the defaults in the other."""
        wanted = decode(FAMILIES[task.family].tiles, tiles)

        def choose(problem: Problem, direction: str) -> Any:
            return wanted if direction == task.direction else None

        kernels = import_module(f"fla_triton.{task.family}").Kernels(self.profile, choose)
        return _plugin(self.target, task.family, kernels)

    def document(
        self,
        best: Sequence[tuple[Task, Measured, Measured]],
        facts: Mapping[str, str],
        earlier: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """The table; defaults that nothing beats are entries too: they were measured.

        Raises:
            ValueError: ``earlier`` is no table, or that of another chip.
        """
        entries = [_entry(task, won, default, facts) for task, won, default in best]
        if earlier is not None:
            arch = checked(earlier, "the earlier table").get("arch")
            if arch != self.profile.arch:
                raise ValueError(f"the table is of {arch!r}, not of {self.profile.arch!r}")
            new = [Entry.of(entry).key for entry in entries]
            kept = [entry for entry in earlier["entries"] if Entry.of(entry).key not in new]
            entries = [*kept, *entries]
        return {"schema": SCHEMA, "arch": self.profile.arch, "entries": entries}


def tuner_of(package: str, target: str, arch: str) -> Tuner:
    """The portable kernels on a chip.

    Args:
        package: the backend whose table it is.
        target: type of the device.
        arch: the chip, one of ``fla_triton.profiles.EVERY``.

    Raises:
        UnsupportedError: there are no plans for the chip.
    """
    if arch not in EVERY:
        raise UnsupportedError(
            "tune", f"the chip {arch!r}", f"chips with plans: {', '.join(EVERY)}"
        )
    return Tuner(package, target, EVERY[arch])


def problem_of(task: Task) -> Problem:
    """The problem of the call that a task times."""
    sizes = task.sizes
    itemsize: int = getattr(torch, task.dtype).itemsize
    contract = next(c for c in CONTRACTS.values() if task.operator in dict(c.public))
    return Problem(
        sequences=sizes["B"],
        tokens=sizes["B"] * sizes["T"],
        longest=sizes["T"],
        heads=sizes.get("HV", sizes["H"]),
        K=sizes["K"],
        V=sizes["V"],
        itemsize=itemsize,
        gated=_gated(contract.name),
    )


def _gated(contract: str) -> bool:
    """True when a plain call has the gate that :class:`Problem` speaks of."""
    return "g" in CONTRACTS[contract].input_names


def _known_sizes(contract: str, sizes: Mapping[str, int]) -> dict[str, int]:
    axes = CONTRACTS[contract].domain.axes
    return {axis: size for axis, size in sizes.items() if axis != "HV" or "HV" in axes}


def _entry(
    task: Task, won: Measured, default: Measured, facts: Mapping[str, str]
) -> dict[str, Any]:
    problem = problem_of(task)
    return {
        "family": task.family,
        "direction": task.direction,
        "itemsize": problem.itemsize,
        "K": problem.K,
        "V": problem.V,
        "streams": problem.sequences * problem.heads,
        "gated": problem.gated,
        "ms": won.ms,
        "default_ms": default.ms,
        "measured": dict(facts),
        "tiles": dict(won.tiles),
    }


def _plugin(target: str, family: str, kernels: Any) -> ModuleType:
    module = ModuleType("tuned")
    served = {row.contract for row in declared.ROWS if row.family == family}

    def fla_backend() -> Backend:
        return Backend("tuned", (target,), "triton", priority=1)

    def fla_implementations() -> Iterator[Implementation]:
        for one in declared.implementations("tuned", ()):
            if one.contract in served:
                yield replace(one, forward=kernels.forward, backward=kernels.backward)

    def fla_probe(device: str) -> Probe:
        return Probe(True)

    for hook in (fla_backend, fla_implementations, fla_probe):
        setattr(module, hook.__name__, hookimpl(hook))
    return module
