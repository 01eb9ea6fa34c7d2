"""What to install for a device or for a backend, in words that can be pasted."""

from __future__ import annotations

from collections.abc import Sequence

EXTRAS = {
    "cuda": (("cuda", "NVIDIA"), ("rocm", "AMD"), ("tilelang", "TileLang kernels")),
    "xpu": (("xpu", "Intel"),),
    "npu": (("ascend", "Ascend"),),
}
"""Extras of the metapackage by device type, as torch names it; AMD devices are ``cuda`` too."""

# A stock triton beside a vendor's torch overwrites the vendor's own, so it is not the advice here.
VENDOR_TORCH = {"rocm": "AMD", "xpu": "Intel"}


def toolchain(plugin: str, distribution: str, missing: Sequence[str]) -> str:
    """How to meet the requirements of a backend that are not met."""
    if distribution == f"fla-backend-{plugin}":
        if vendor := VENDOR_TORCH.get(plugin):
            return f"install torch's build for {vendor} GPUs, which brings its own triton"
        return f"pip install 'fla-kernels[{plugin}]'"
    return f"pip install {' '.join(map(repr, missing))}"


def for_device(device_type: str) -> list[str]:
    """What would bring a backend for a device type; empty when an installed one can serve it.

    One that is broken is no reason to install another; ``doctor`` says what to do about it.
    """
    from fla_core.dispatch.runtime import backends
    from fla_core.plugins.requirements import unmet

    hints = []
    for record in backends():
        card = record.backend
        if record.built_in or card is None or not record.serves(device_type):
            continue
        missing = [text for text in card.requires if unmet((text,))]
        if not missing:
            return []
        step = toolchain(record.name, record.origin.distribution, missing)
        hints.append(f"{step}  # for {record.name}")
    return hints or [
        f"pip install 'fla-kernels[{extra}]'  # {what}"
        for extra, what in EXTRAS.get(device_type, ())
    ]
