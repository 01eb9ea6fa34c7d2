"""Results made up for tests of what is done with results."""

from __future__ import annotations

from typing import Any

from fla_conformance.case import Case
from fla_conformance.report import Report
from fla_conformance.result import Margin, Outcome, Result

SIZES = {"B": 1, "T": 16, "H": 2, "HV": 2, "K": 8, "V": 8}


def case(contract: str = "gla", dtype: str = "bfloat16", **changes: Any) -> Case:
    """A small case."""
    return Case(contract, "fwd", dtype, "chunk", SIZES).but(**changes)


def row(
    level: str = "L1",
    outcome: Outcome = Outcome.PASS,
    of: Case | None = None,
    variant: str = "chunk",
    law: str = "",
    **more: Any,
) -> Result:
    """A result of ``acme``."""
    of = case() if of is None else of
    name = f"{of.id}:{law}" if law else of.id
    detail = "" if outcome is Outcome.PASS else "it went wrong"
    given = {"detail": detail, **more}
    return Result(
        name, f"acme:{of.contract}#{variant}", level, outcome, of.to_json(), law=law, **given
    )


def plugin_row(outcome: Outcome = Outcome.PASS, name: str = "card") -> Result:
    """A result of the plugin as a whole."""
    detail = "" if outcome is Outcome.PASS else "the card is wrong"
    return Result(f"plugin/{name}", "acme", "L0", outcome, detail=detail, law=name)


def margin(size: float) -> Margin:
    """A margin of that size in both ways of looking."""
    return Margin(size / 2, size, "o", size / 100)


HEADER: dict[str, Any] = {
    "suite": {"version": "1", "core": "1", "contracts_hash": "abc"},
    "plugin": {
        "name": "acme",
        "distribution": "fla-acme",
        "version": "0.3.1",
        "card_hash": "def",
        "description": "kernels for a <fast> chip",
        "toolchain": "triton",
        "targets": ["npu"],
        "editable": False,
        "source": {"commit": "", "dirty": False},
    },
    "host": {
        "device": "npu:0",
        "name": "N1",
        "arch": "n1",
        "driver": "",
        "os": "Linux 6",
        "python": "3.11",
        "torch": "2.7",
    },
    "dists": {"torch": "2.7"},
    "selection": {
        "op": "*",
        "level": "L3",
        "budget": "ci",
        "only": "",
        "seed": 0,
        "isolated": False,
    },
    "started": "2030-01-02T03:04:05+00:00",
    "seconds": 1.5,
    "argv": ["fla-conformance", "run", "acme"],
    "complete": True,
}


def report(*rows: Result, problems: tuple[str, ...] = (), **header: Any) -> Report:
    """A report of these rows."""
    return Report.of({**HEADER, **header}, rows, problems)
