"""The plugin ``rocm``: AMD GPUs through Triton. torch calls their device type ``cuda``."""

from __future__ import annotations

from collections.abc import Mapping

from fla_core.plugins import Backend, Probe, detect, hookimpl

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
def fla_probe(device: str) -> Probe:
    """Look for a HIP build of torch, a device and a Triton that can compile for it."""
    return detect.answered(lambda: _look(device))


def _look(device: str) -> Probe:
    index = detect.device_index(CARD, device)
    # The stock build contains the AMD compiler; AMD's own build carries another name.
    build, triton = detect.triton_build(detect.STOCK, "rocm")
    torch = detect.imported("torch")
    if torch.version.hip is None:
        raise detect.Unavailable(f"torch {torch.__version__} is built without ROCm")
    detect.check_present(torch.cuda, index, "AMD GPU")
    detect.imported("triton")
    versions = {"torch": torch.__version__, "hip": torch.version.hip, "triton": triton}
    found = f"{torch.cuda.get_device_name(index)} with {build} {triton}"
    return detect.without_kernels(found, detect.gpu_arch(torch, index), versions)


@hookimpl
def fla_doctor() -> Mapping[str, str]:
    """Return what metadata and device files say; imports nothing."""
    return detect.report(DEVICE_FILES, ("torch", "triton"))
