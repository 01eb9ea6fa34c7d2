"""Planted faults: the proof that the suite fails what is wrong.

Each fault is one wrong line of a kernel, planted into an implementation that is otherwise right and
takes the way of any plugin. The suite must fail every one of them, at every case that can tell.
"""

from __future__ import annotations

from fla_conformance.faults.fault import Fault
from fla_conformance.faults.hunt import Finding, Sighting, hunt, hunts
from fla_conformance.faults.table import FAULTS

__all__ = ["FAULTS", "Fault", "Finding", "Sighting", "hunt", "hunts"]
