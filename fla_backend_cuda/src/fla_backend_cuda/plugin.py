"""The plugin ``cuda``: NVIDIA GPUs through Triton."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module

from fla_core.domain import AxisRange
from fla_core.plugins import Backend, Implementation, Probe, Validity, detect, hookimpl
from fla_triton import declared
from fla_triton.profiles import PROFILES

CARD = Backend(
    name="cuda",
    targets=("cuda",),
    toolchain="triton",
    requires=("torch>=2.7", "triton>=3.4"),
    priority=50,
    description="NVIDIA GPUs, Triton kernels",
)
HOPPER = {
    "simple_gla": "scalar_decay",
    "linear_attn": "scalar_decay",
    "gla": "channel_decay",
    "delta_rule": "delta",
    "gated_delta_rule": "delta",
    "kda": "delta_channel",
    "gdn2": "delta_channel",
}
"""Contracts with kernels of their own for Hopper, and what serves them."""

OFFERED = tuple(PROFILES)
"""Chips that there are plans for, each compiled for from the real host code."""

RUN_ON = "sm90"
"""Of those, the chip that ran it all: a conformance report of each lies in ``docs/proofs``."""

DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/dxg")


@hookimpl
def fla_backend() -> Backend:
    """Return the card."""
    return CARD


@hookimpl
def fla_implementations() -> Iterable[Implementation]:
    """Return what serves each contract; ``fla_validity`` says what of it was run, and where."""
    claims = ("graph_capture",)
    kernels = "fla_backend_cuda.kernels"
    portable = tuple(declared.implementations(kernels, OFFERED, claims, declared.SERVED))
    for one in filter(None, map(_on_hopper, portable)):
        if one.contract == "linear_attn":
            yield _normalised(one)
        yield one
    yield from portable


def _on_hopper(portable: Implementation) -> Implementation | None:
    """The same function with Hopper's own kernels, where there are any."""
    if portable.contract not in HOPPER or portable.variant != "chunk":
        return None
    axes = {"K": AxisRange(choices=(64, 128)), "V": AxisRange(64, 512, 64)}
    domain = replace(portable.domain, dtypes=("float16", "bfloat16"), axes=axes)
    served = f"fla_backend_cuda.hopper.served:{HOPPER[portable.contract]}"
    return replace(
        portable,
        variant="hopper",
        forward=f"{served}.forward",
        backward=f"{served}.backward",
        domain=domain,
        arch=("sm90",),
    )


def _normalised(hopper: Implementation) -> Implementation:
    """Linear attention that is normalised, its normaliser formed apart from the numerators."""
    domain = replace(declared.NORMALISED.domain(), axes=hopper.domain.axes)
    residuals = "fla_triton.normaliser:residuals"
    return replace(hopper, variant="hopper_normalised", residuals=residuals, domain=domain)


@hookimpl
def fla_validity() -> Iterable[Validity]:
    """Return which compilers and chips the kernels ran on."""
    old = "written for Gluon as of triton 3.6"
    yield Validity("cuda:*#hopper*", "*", "*", "triton<3.6", "denied", old)
    seen = "passed every check of the conformance suite up to L4 on one H200"
    yield Validity("cuda:*", "*", RUN_ON, "triton>=3.6,<3.7", "ok", seen)
    yield Validity("cuda:*", "*", RUN_ON, "triton", "unverified", "run under triton 3.6 only")
    yield Validity("cuda:*", "*", "*", "triton", "unverified", declared.COMPILED_ONLY)


@hookimpl
def fla_probe(device: str) -> Probe:
    """Look for a CUDA build of torch, a device and the stock Triton, then run a kernel."""
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
    arch = detect.gpu_arch(torch, index)
    found = f"{torch.cuda.get_device_name(index)} with {build} {triton}"
    if not _trial_kernel(index):
        return Probe(False, f"{found} ran a kernel and got it wrong", arch, versions)
    return Probe(True, arch=arch, versions=versions)


def _trial_kernel(index: int) -> bool:
    import torch

    from fla_triton.together import prepare
    from fla_triton.trial import runs_on

    prepare()
    with ThreadPoolExecutor(1) as beside:
        if detect.gpu_arch(torch, index) == RUN_ON:
            # Half a second, while the trial waits for compilers.
            beside.submit(import_module, f"{__package__}.hopper.served")
        return runs_on(torch.device("cuda", index))


@hookimpl
def fla_tuner() -> str:
    """Name what knows the tiles of the portable kernels."""
    return "fla_backend_cuda.kernels:tuner"


@hookimpl
def fla_doctor() -> Mapping[str, str]:
    """Return what metadata and device files say; imports nothing."""
    report = detect.report(DEVICE_FILES, ("torch", "triton"))
    return {**report, "implementations": f"for {', '.join(OFFERED)}; run on {RUN_ON} alone"}
