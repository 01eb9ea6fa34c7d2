"""The plugin ``rocm``: AMD GPUs through Triton. torch calls their device type ``cuda``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fla_core.plugins import Backend, Implementation, Probe, Validity, detect, hookimpl
from fla_triton import declared
from fla_triton.profiles import AMD

CARD = Backend(
    name="rocm",
    targets=("cuda",),
    toolchain="triton",
    requires=("torch>=2.7", "triton>=3.4"),
    priority=50,
    description="AMD GPUs, Triton kernels",
)
DEVICE_FILES = ("/dev/kfd",)


@hookimpl
def fla_backend() -> Backend:
    """Return the card."""
    return CARD


@hookimpl
def fla_implementations() -> Iterable[Implementation]:
    """Return what compiles for each chip; ``fla_validity`` says that none of it was run there."""
    chips = tuple(AMD)
    return declared.implementations("fla_backend_rocm.kernels", chips, rows=declared.SERVED)


@hookimpl
def fla_validity() -> Iterable[Validity]:
    """Return what is known of compilers and chips."""
    too_old = "Triton compiles for gfx1250 from 3.7.1 on"
    yield Validity("rocm:*", "*", "gfx1250", "triton<3.7.1", "denied", too_old)
    yield Validity("rocm:*", "*", "*", "triton", "unverified", declared.COMPILED_ONLY)


@hookimpl
def fla_probe(device: str) -> Probe:
    """Look for a HIP build of torch, a device and a Triton for it, then run a kernel."""
    return detect.answered(lambda: _look(device))


def _look(device: str) -> Probe:
    index = detect.device_index(CARD, device)
    # The stock build contains the AMD compiler; AMD's own build carries another name.
    build, triton = detect.triton_build(detect.STOCK, "rocm")
    torch = detect.imported("torch")
    hip = getattr(torch.version, "hip", None)
    if hip is None:
        raise detect.Unavailable(f"torch {torch.__version__} is built without ROCm")
    detect.check_present(torch.cuda, index, "AMD GPU")
    detect.imported("triton")
    versions = {"torch": torch.__version__, "hip": hip, "triton": triton}
    arch = detect.gpu_arch(torch, index)
    found = f"{torch.cuda.get_device_name(index)} with {build} {triton}"
    if not _trial_kernel(index):
        return Probe(False, f"{found} ran a kernel and got it wrong", arch, versions)
    return Probe(True, arch=arch, versions=versions)


def _trial_kernel(index: int) -> bool:
    import torch

    from fla_triton.trial import runs_on

    return runs_on(torch.device("cuda", index))


@hookimpl
def fla_tuner() -> str:
    """Name what knows the tiles of the portable kernels."""
    return "fla_backend_rocm.kernels:tuner"


@hookimpl
def fla_doctor() -> Mapping[str, str]:
    """Return what metadata and device files say; imports nothing."""
    report = detect.report(DEVICE_FILES, ("torch", "triton"))
    return {**report, "implementations": f"for {', '.join(AMD)}; run on none"}
