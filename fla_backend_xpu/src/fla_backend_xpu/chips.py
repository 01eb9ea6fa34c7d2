"""Which Intel chip a device is; imports no toolchain."""

from __future__ import annotations

from typing import Any

IP_VERSIONS = {"pvc": ("12.60.",), "dg2": ("12.55.", "12.56.", "12.57."), "bmg": ("20.1.", "20.2.")}
"""First parts of the graphics version that drivers report, by chip."""

NAMES = {
    "pvc": ("Data Center GPU Max",),
    "dg2": ("Arc(TM) A", "Arc(TM) Pro A", "Data Center GPU Flex"),
    "bmg": ("Arc(TM) B", "Arc(TM) Pro B"),
}
"""Parts of the device's name, where the driver reports another kind of version."""

FIRST_IP = 9
"""Lowest major number of a graphics version; those of drivers and of their interfaces are lower."""


def chip_name(properties: Any) -> str:
    """``"pvc"``, ``"dg2"`` or ``"bmg"``; ``""`` for any other chip.

    Args:
        properties: of ``torch.xpu.get_device_properties``; ``version`` and ``name`` are read.
    """
    version = str(getattr(properties, "version", ""))
    for chip, beginnings in IP_VERSIONS.items():
        if version.startswith(beginnings):
            return chip
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) >= FIRST_IP:
        return ""  # graphics of processors are sold under names of cards
    name = str(getattr(properties, "name", ""))
    return next((chip for chip, parts in NAMES.items() if any(p in name for p in parts)), "")
