"""The enumerated cases of an implementation: the same ones in every run, in the same order."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from fla_conformance.case import Case, Direction
from fla_conformance.fitting import Fitting
from fla_conformance.risks import STATES, Risk, risks
from fla_conformance.sense import features_of
from fla_core.contract import Contract
from fla_core.plugins.api import Implementation

CI_EXTRA = 6
"""How many cases beyond those of every budget ``ci`` draws, for each implementation and level."""

_DIRECTIONS: dict[str, tuple[Direction, ...]] = {"L1": ("fwd",), "L2": ("bwd",)}
_LEFT_OUT = tuple(map(frozenset, ((), STATES[:1], STATES[1:], STATES)))
_STANDARD = {"B": 2, "T": 65, "H": 2, "HV": 2, "K": 16, "V": 8}


def grid(
    contract: Contract, implementation: Implementation, level: str, budget: str | int = "ci"
) -> list[Case]:
    """Cases of one implementation, every one inside its declared domain.

    Args:
        contract: the contract it implements.
        implementation: its declaration.
        level: ``"L1"`` for forward cases, ``"L2"`` for backward ones.
        budget: ``"full"`` for all; ``"ci"`` for those that no budget leaves out and a few others,
            drawn by a seed that is the contract's; a number for that many, the most telling first.

    Raises:
        ValueError: another level or budget.
    """
    if level not in _DIRECTIONS:
        raise ValueError(f"level must be {' | '.join(_DIRECTIONS)}, got {level!r}")
    found: dict[str, tuple[Case, bool]] = {}
    for direction in _DIRECTIONS[level]:
        for case, core in _fitted(contract, implementation, direction):
            found.setdefault(case.id, (case, core))
    cases = list(found.values())
    if budget == "full":
        return [case for case, _ in cases]
    if budget == "ci":
        return _drawn(contract, cases)
    if isinstance(budget, int) and budget >= 0:
        by_weight = sorted(cases, key=lambda pair: not pair[1])
        return [case for case, _ in by_weight[:budget]]
    raise ValueError(f"budget must be 'ci', 'full' or a number of cases, got {budget!r}")


def _drawn(contract: Contract, cases: list[tuple[Case, bool]]) -> list[Case]:
    others = [case.id for case, core in cases if not core]
    draw = random.Random(zlib.crc32(contract.name.encode()))
    chosen = set(draw.sample(others, min(CI_EXTRA, len(others))))
    return [case for case, core in cases if core or case.id in chosen]


def _fitted(
    contract: Contract, implementation: Implementation, direction: Direction
) -> Iterator[tuple[Case, bool]]:
    own = implementation.forms[0]
    public = {form for _, form in contract.public}
    own = own if own in public else contract.public[0][1]
    fitting = Fitting(implementation)
    for risk in risks(contract, own):
        if direction == "bwd" and not risk.backward:
            continue
        wanted = _case(contract, risk, direction, risk.form or own)
        # Nearly all cases carry states, and few are about them.
        for left_out in _LEFT_OUT:
            case = fitting.fit(wanted.but(features=wanted.features - left_out))
            if case is not None:
                yield case, risk.core
                break


def _case(contract: Contract, risk: Risk, direction: Direction, form: str) -> Case:
    sizes = {**_STANDARD, **risk.sizes}
    if "HV" not in risk.sizes:
        sizes["HV"] = sizes["H"]
    if "HV" not in contract.domain.axes:
        sizes["HV"] = sizes["H"]
    if risk.lengths is not None:
        sizes.update(B=1, T=sum(risk.lengths))
    case = Case(
        contract=contract.name,
        direction=direction,
        dtype=risk.dtype,
        form=form,
        sizes=sizes,
        features=risk.features,
        lengths=risk.lengths,
        regime=risk.regime,
        options=risk.options,
        chunk_size=risk.chunk_size,
        recompute=risk.recompute,
        safe_gate=risk.safe_gate,
        gate_dtype=risk.gate_dtype,
    )
    return case.but(features=features_of(case))


def promoted(folder: Path) -> list[Case]:
    """Cases that were found elsewhere and belong to the grid now: ``promoted/*.json`` of a folder.

    Args:
        folder: the one that holds a plugin's expectations.
    """
    files: Iterable[Path] = sorted((folder / "promoted").glob("*.json"))
    return [Case.from_json(json.loads(file.read_text(encoding="utf-8"))) for file in files]
