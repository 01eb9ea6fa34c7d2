"""Which implementation really ran; see :mod:`fla_core.dispatch.witness`."""

from __future__ import annotations

from collections.abc import Sequence

from fla_core.dispatch.witness import NotWitnessedError, Run, Witness, only

__all__ = ["NotWitnessedError", "Run", "Witness", "missing", "only"]


def missing(runs: Sequence[Run], wanted: Sequence[str]) -> str:
    """What of the wanted directions did not run exactly once; ``""`` when all did.

    Args:
        runs: what the witness saw.
        wanted: ``"forward"``, and ``"backward"`` where gradients were asked for.
    """
    seen = sorted(run.direction for run in runs)
    if seen == sorted(wanted):
        return ""
    listed = ", ".join(f"{run.direction} of {run.plan}" for run in runs) or "nothing"
    return f"wanted one {' and one '.join(wanted)}, what ran was {listed}"
