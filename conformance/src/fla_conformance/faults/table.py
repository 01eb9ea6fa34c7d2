"""Every fault that is planted, by name."""

from __future__ import annotations

from fla_conformance.faults import (
    features,
    gates,
    gradients,
    manners,
    outputs,
    precision,
    slots,
    states,
)
from fla_conformance.faults.fault import Fault

_MODULES = (outputs, states, gates, precision, features, gradients, manners, slots)

FAULTS: dict[str, Fault] = {fault.name: fault for part in _MODULES for fault in part.FAULTS}
