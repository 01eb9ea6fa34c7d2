"""The plugin ``ascend``: Ascend NPUs through triton-ascend."""

from __future__ import annotations

import os
from collections.abc import Mapping

from fla_core.plugins import Backend, Probe, detect, hookimpl

CARD = Backend(
    name="ascend",
    targets=("npu",),
    toolchain="triton",
    requires=("torch>=2.7", "torch-npu", "triton-ascend>=3.2"),
    priority=50,
    description="Ascend NPUs, triton-ascend kernels",
)
DEVICE_FILES = ("/dev/davinci[0-9]*",)
CANN = "ASCEND_HOME_PATH"


@hookimpl
def fla_backend() -> Backend:
    """Return the card."""
    return CARD


@hookimpl
def fla_probe(device: str) -> Probe:
    """Look for triton-ascend, torch_npu, CANN or a device, and only then import torch_npu."""
    return detect.answered(lambda: _look(device))


def _look(device: str) -> Probe:
    index = detect.device_index(CARD, device)
    build, triton = detect.triton_build("ascend")
    detect.check_importable("torch_npu")
    # Without CANN, importing torch_npu fails, and so does a plain `import torch` that loads it.
    if not detect.device_files(*DEVICE_FILES) and CANN not in os.environ:
        raise detect.Unavailable(f"there is no {DEVICE_FILES[0]}, and {CANN} is not set")
    torch = detect.imported("torch")
    torch_npu = detect.imported("torch_npu")
    if not hasattr(torch, "npu"):
        raise detect.Unavailable(f"torch_npu {torch_npu.__version__} did not register torch.npu")
    detect.check_present(torch.npu, index, "Ascend NPU")
    detect.imported("triton")
    chip = torch.npu.get_device_name(index)
    versions = {
        "torch": torch.__version__,
        "torch-npu": torch_npu.__version__,
        "triton-ascend": triton,
    }
    return detect.without_kernels(f"{chip} with {build} {triton}", chip.lower(), versions)


@hookimpl
def fla_doctor() -> Mapping[str, str]:
    """Return what metadata, device files and the environment say; imports nothing."""
    report = detect.report(DEVICE_FILES, ("torch", "torch-npu", "triton"))
    return {**report, CANN: os.environ.get(CANN, "not set")}
