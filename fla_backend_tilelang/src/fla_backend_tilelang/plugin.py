"""The plugin ``tilelang``: a toolchain, so it serves NVIDIA and AMD GPUs alike."""

from __future__ import annotations

from collections.abc import Mapping

from fla_core.plugins import Backend, Probe, detect, hookimpl

CARD = Backend(
    name="tilelang",
    targets=("cuda",),
    toolchain="tilelang",
    requires=("torch>=2.7", "tilelang>=0.1.15"),
    description="NVIDIA and AMD GPUs, TileLang kernels",
)
DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/kfd")


@hookimpl
def fla_backend() -> Backend:
    """Return the card."""
    return CARD


@hookimpl
def fla_probe(device: str) -> Probe:
    """Look for TileLang and a GPU that torch can use."""
    return detect.answered(lambda: _look(device))


def _look(device: str) -> Probe:
    index = detect.device_index(CARD, device)
    owners = detect.providers("tilelang")
    if not owners:
        raise detect.Unavailable("tilelang is not installed")
    torch = detect.imported("torch")
    if torch.version.cuda is None and torch.version.hip is None:
        raise detect.Unavailable(f"torch {torch.__version__} is built without CUDA and ROCm")
    detect.check_present(torch.cuda, index, "GPU")
    # Last, because it takes 2.3 s.
    detect.imported("tilelang")
    tilelang = next(iter(owners.values()))
    versions = {"torch": torch.__version__, "tilelang": tilelang}
    found = f"{torch.cuda.get_device_name(index)} with tilelang {tilelang}"
    return detect.without_kernels(found, detect.gpu_arch(torch, index), versions)


@hookimpl
def fla_doctor() -> Mapping[str, str]:
    """Return what metadata and device files say; imports nothing."""
    return detect.report(DEVICE_FILES, ("torch", "tilelang"))
