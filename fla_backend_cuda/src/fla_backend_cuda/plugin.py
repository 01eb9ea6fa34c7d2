"""The plugin ``cuda``: NVIDIA GPUs through Triton."""

from __future__ import annotations

from collections.abc import Mapping

from fla_core.plugins import Backend, Probe, detect, hookimpl

CARD = Backend(
    name="cuda",
    targets=("cuda",),
    toolchain="triton",
    requires=("torch>=2.7", "triton>=3.4"),
    priority=50,
    description="NVIDIA GPUs, Triton kernels",
)
DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/dxg")


@hookimpl
def fla_backend() -> Backend:
    """Return the card."""
    return CARD


@hookimpl
def fla_probe(device: str) -> Probe:
    """Look for a CUDA build of torch, a device and the stock Triton."""
    return detect.answered(lambda: _look(device))


def _look(device: str) -> Probe:
    index = detect.device_index(CARD, device)
    build, triton = detect.triton_build(detect.STOCK)
    torch = detect.imported("torch")
    if torch.version.hip is not None:
        raise detect.Unavailable(
            f"torch {torch.__version__} is built for AMD GPUs, which it also calls 'cuda':"
            " install fla-backend-rocm"
        )
    if torch.version.cuda is None:
        raise detect.Unavailable(f"torch {torch.__version__} is built without CUDA")
    detect.check_present(torch.cuda, index, "NVIDIA GPU")
    detect.imported("triton")
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "triton": triton}
    found = f"{torch.cuda.get_device_name(index)} with {build} {triton}"
    return detect.without_kernels(found, detect.gpu_arch(torch, index), versions)


@hookimpl
def fla_doctor() -> Mapping[str, str]:
    """Return what metadata and device files say; imports nothing."""
    return detect.report(DEVICE_FILES, ("torch", "triton"))
