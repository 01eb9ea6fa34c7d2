"""What to install for a device, in the words of pip."""

from __future__ import annotations

EXTRAS = {
    "cuda": (("cuda", "NVIDIA"), ("rocm", "AMD"), ("tilelang", "TileLang kernels")),
    "xpu": (("xpu", "Intel"),),
    "npu": (("ascend", "Ascend"),),
}
"""Extras of the metapackage by device type, as torch names it; AMD devices are ``cuda`` too."""


def missing_backend(device_type: str) -> list[str]:
    """Commands that would bring a backend for a device type; empty when an installed one serves it.

    One that is installed and broken is no reason to install another; its state says what to do.
    """
    from fla_core.dispatch.runtime import backends

    if any(not record.built_in and record.serves(device_type) for record in backends()):
        return []
    return [
        f"pip install 'fla-kernels[{extra}]'  # {what}"
        for extra, what in EXTRAS.get(device_type, ())
    ]
