"""The plugin ``xpu``: Intel GPUs through Triton's XPU build."""

from __future__ import annotations

from collections.abc import Mapping

from fla_core.plugins import Backend, Probe, detect, hookimpl

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
def fla_probe(device: str) -> Probe:
    """Look for an Intel GPU and for Intel's build of Triton."""
    return detect.answered(lambda: _look(device))


def _look(device: str) -> Probe:
    index = detect.device_index(CARD, device)
    build, triton = detect.triton_build("xpu")
    torch = detect.imported("torch")
    # is_available() is safe on every build; other calls raise AssertionError on one without XPU.
    detect.check_present(torch.xpu, index, "Intel GPU")
    detect.imported("triton")
    versions = {"torch": torch.__version__, "triton": triton}
    found = f"{torch.xpu.get_device_name(index)} with {build} {triton}"
    return detect.without_kernels(found, "", versions)


@hookimpl
def fla_doctor() -> Mapping[str, str]:
    """Return what metadata and device files say; imports nothing."""
    return detect.report(DEVICE_FILES, ("torch", "triton"))
