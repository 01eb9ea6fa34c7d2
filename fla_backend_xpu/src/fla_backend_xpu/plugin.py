"""The plugin ``xpu``: Intel GPUs through Triton's XPU build."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fla_backend_xpu.chips import chip_name
from fla_core.plugins import Backend, Implementation, Probe, Validity, detect, hookimpl
from fla_triton import declared
from fla_triton.profiles import INTEL

CARD = Backend(
    name="xpu",
    targets=("xpu",),
    toolchain="triton",
    requires=("torch>=2.7", "triton>=3.3.0b1"),
    priority=50,
    description="Intel GPUs, Triton kernels",
)
# Render nodes belong to GPUs of any vendor: they hint, they prove nothing.
DEVICE_FILES = ("/dev/dri/renderD*", "/dev/dxg")


@hookimpl
def fla_backend() -> Backend:
    """Return the card."""
    return CARD


@hookimpl
def fla_implementations() -> Iterable[Implementation]:
    """Return what compiles for each chip; ``fla_validity`` says that none of it was run there."""
    chips = tuple(INTEL)
    return declared.implementations("fla_backend_xpu.kernels", chips, rows=declared.SERVED)


@hookimpl
def fla_validity() -> Iterable[Validity]:
    """Return what is known of compilers and chips."""
    yield Validity("xpu:*", "*", "*", "triton", "unverified", declared.COMPILED_ONLY)


@hookimpl
def fla_probe(device: str) -> Probe:
    """Look for an Intel GPU and for Intel's build of Triton, then run a kernel."""
    return detect.answered(lambda: _look(device))


def _look(device: str) -> Probe:
    index = detect.device_index(CARD, device)
    build, triton = detect.triton_build("xpu")
    torch = detect.imported("torch")
    if not hasattr(torch, "xpu"):
        raise detect.Unavailable(f"torch {torch.__version__} has no torch.xpu")
    # is_available() is safe on every build; other calls raise AssertionError on one without XPU.
    detect.check_present(torch.xpu, index, "Intel GPU")
    detect.imported("triton")
    versions = {"torch": torch.__version__, "triton": triton}
    name = torch.xpu.get_device_name(index)
    arch = chip_name(torch.xpu.get_device_properties(index))
    if not arch:
        raise detect.Unavailable(f"{name} is none of the chips planned for: {', '.join(INTEL)}")
    if not _trial_kernel(index):
        reason = f"{name} with {build} {triton} ran a kernel and got it wrong"
        return Probe(False, reason, arch, versions)
    return Probe(True, arch=arch, versions=versions)


def _trial_kernel(index: int) -> bool:
    import torch

    from fla_triton.trial import runs_on

    return runs_on(torch.device("xpu", index))


@hookimpl
def fla_tuner() -> str:
    """Name what knows the tiles of the portable kernels."""
    return "fla_backend_xpu.kernels:tuner"


@hookimpl
def fla_doctor() -> Mapping[str, str]:
    """Return what metadata and device files say; imports nothing."""
    report = detect.report(DEVICE_FILES, ("torch", "triton"))
    return {**report, "implementations": f"for {', '.join(INTEL)}; run on none"}
