"""Is the hardware there, and the toolchain? For probes and ``fla_doctor``, cheapest first.

A probe asks in this order: installed metadata, device files, then imports, then the driver. Each
helper raises :class:`Unavailable` with a reason written for people, and :func:`answered` turns that
into a :class:`~fla_core.plugins.Probe`, so that a probe reads as a list of conditions and never
raises.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from glob import glob
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fla_core.plugins.api import Backend, Probe
from fla_core.plugins.installed import owners, version_of

NO_IMPLEMENTATIONS = "this backend has no implementations yet"

TRITON_BUILDS = {
    "pytorch-triton-rocm": "rocm",
    "triton-rocm": "rocm",
    "pytorch-triton-xpu": "xpu",
    "triton-xpu": "xpu",
    "triton-ascend": "ascend",
}
"""Distributions that provide ``triton`` for one vendor; any other is taken for the stock build."""

STOCK = "stock"


class Unavailable(Exception):
    """Why a backend cannot run here, in words for people."""


def answered(look: Callable[[], Probe]) -> Probe:
    """Run the body of a probe; whatever stops it becomes the reason of a refusal."""
    try:
        return look()
    except Unavailable as reason:
        return Probe(False, str(reason))
    except Exception as error:
        return Probe(False, f"looking for the device raised {type(error).__name__}: {error}")


def without_kernels(found: str, arch: str, versions: Mapping[str, str]) -> Probe:
    """The answer where everything is present but there is no kernel to compile and run."""
    reason = f"{found} is there, but {NO_IMPLEMENTATIONS}"
    return Probe(False, reason, arch, versions)


def device_index(card: Backend, device: str) -> int:
    """The index in ``"cuda:1"``, 0 when there is none.

    Raises:
        Unavailable: the card does not name this device type.
    """
    kind, _, index = device.partition(":")
    if kind not in card.targets:
        raise Unavailable(f"it serves {' and '.join(card.targets)} devices, not {kind!r}")
    return int(index or 0)


def check_importable(module: str) -> None:
    """Look for a top-level module without importing it.

    Raises:
        Unavailable: there is none.
    """
    if module not in sys.modules and find_spec(module) is None:
        raise Unavailable(f"{module} is not installed")


def imported(module: str) -> Any:
    """Import a toolchain.

    Raises:
        Unavailable: it is not installed, or importing it fails.
    """
    check_importable(module)
    try:
        return import_module(module)
    except Exception as error:
        text = " ".join(str(error).split())
        raise Unavailable(f"importing {module} raised {type(error).__name__}: {text}") from error


def check_present(runtime: Any, index: int, what: str) -> None:
    """Ask ``torch.cuda``, ``torch.xpu`` or ``torch.npu`` for the device with this index.

    Raises:
        Unavailable: there is no device, or no such index.
    """
    if not runtime.is_available():
        raise Unavailable(f"torch finds no {what}")
    count = runtime.device_count()
    if index >= count:
        raise Unavailable(f"torch finds {count} {what}(s), there is no index {index}")


def providers(module: str) -> dict[str, str]:
    """Version of each installed distribution that owns an import package, by its name."""
    return {name.lower().replace("_", "-"): version_of(name) for name in owners(module)}


def triton_build(*vendors: str) -> tuple[str, str]:
    """Name and version of the distribution that owns ``import triton``.

    Args:
        vendors: builds that will do, of ``STOCK`` and the values of ``TRITON_BUILDS``.

    Raises:
        Unavailable: no distribution owns it, several do, or the owner is another vendor's.
    """
    found = providers("triton")
    if not found:
        raise Unavailable("no installed distribution provides triton")
    if len(found) > 1:
        raise Unavailable(
            f"triton belongs to {_listed(found)}: they overwrite each other's files, uninstall one"
        )
    ((name, version),) = found.items()
    if TRITON_BUILDS.get(name, STOCK) not in vendors:
        fitting = [build for build, vendor in TRITON_BUILDS.items() if vendor in vendors]
        wanted = ["triton"] * (STOCK in vendors) + fitting
        needs = " or ".join(wanted)
        raise Unavailable(f"triton belongs to {_listed(found)}, this backend needs {needs}")
    return name, version


def gpu_arch(torch: Any, index: int) -> str:
    """``"sm90"`` of an NVIDIA GPU, ``"gfx942"`` of an AMD GPU: torch calls both ``cuda``."""
    if torch.version.hip is None:
        major, minor = torch.cuda.get_device_capability(index)
        return f"sm{major}{minor}"
    # "gfx942:sramecc+:xnack-": what follows the first colon are modes of the chip.
    return str(torch.cuda.get_device_properties(index).gcnArchName.partition(":")[0])


def device_files(*patterns: str) -> tuple[str, ...]:
    """Device files of the driver that exist, sorted; they are there before any library is."""
    return tuple(sorted(path for pattern in patterns for path in glob(pattern)))


def report(files: tuple[str, ...], distributions: tuple[str, ...]) -> dict[str, str]:
    """What ``fla_doctor`` can say from metadata and device files; imports nothing.

    Args:
        files: patterns of the driver's device files.
        distributions: whose versions matter; for ``"triton"`` it is the owner of the package.
    """
    present = ", ".join(device_files(*files)) or f"no {' or '.join(files)}"
    versions = {name: _installed(name) for name in distributions}
    return {"implementations": NO_IMPLEMENTATIONS, "device files": present, **versions}


def _installed(name: str) -> str:
    if name == "triton":
        found = providers(name)
        clash = ": they overwrite each other's files" if len(found) > 1 else ""
        return f"{_listed(found)}{clash}" if found else "not installed"
    return version_of(name) or "not installed"


def _listed(found: Mapping[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in found.items())
