"""Running SPIR-V on the CPU through OpenCL, on the memory of CPU tensors."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import files
from typing import Any

import numpy as np
import torch
from torch import Tensor

NUMBERS = {"i32": np.int32, "i64": np.int64, "fp32": np.float32}


def _library() -> str:
    (found,) = (file for file in files("intel-opencl-rt") or () if file.name == "libintelocl.so")
    return str(found.locate())


class OpenCL:
    """What a driver of Intel's does, for a CPU."""

    def __init__(self) -> None:
        # The wheel's own registration names the folder it was built in.
        os.environ["OCL_ICD_VENDORS"] = _library()
        # Otherwise code that is not optimised has no subgroups.
        os.environ["CL_CONFIG_CPU_O0_VECTORIZATION"] = "1"
        import pyopencl

        self._cl = pyopencl
        self._context = pyopencl.Context([pyopencl.get_platforms()[0].get_devices()[0]])
        self._queue = pyopencl.CommandQueue(self._context)
        self.launches = 0

    def load(self, name: str, code: bytes) -> Any:
        """Build a kernel."""
        program = self._cl.Program(self._context, code)
        # Of large kernels a pass of the optimiser crashes every now and then, and takes longest.
        program.build(options=["-cl-opt-disable"])
        return self._cl.Kernel(program, name)

    def launcher(self, source: Any, metadata: Any) -> Callable[..., None]:
        """What launches a kernel and waits for it."""
        kinds = list(source.signature.values())
        threads = metadata.num_warps * metadata.threads_per_warp

        def launch(x: int, y: int, z: int, stream: Any, kernel: Any, *rest: Any) -> None:
            arguments = rest[-len(kinds) :]
            buffers: dict[int, tuple[Tensor, Any]] = {}
            passed = [
                self._argument(kind, value, buffers)
                for kind, value in zip(kinds, arguments, strict=True)
                if kind != "constexpr"
            ]
            if kernel.num_args == len(passed) + 1:
                passed.append(self._cl.LocalMemory(max(1, metadata.shared)))
            kernel.set_args(*passed)
            grid = (x * threads, y, z)
            self._cl.enqueue_nd_range_kernel(self._queue, kernel, grid, (threads, 1, 1)).wait()
            for tensor, buffer in buffers.values():
                self._cl.enqueue_copy(self._queue, _memory(tensor), buffer)
            self._queue.finish()
            self.launches += 1

        return launch

    def _argument(self, kind: str, value: Any, buffers: dict[int, tuple[Tensor, Any]]) -> Any:
        if not isinstance(value, Tensor):
            return NUMBERS[kind](value)
        if not value.is_contiguous():
            raise ValueError(f"kernels take contiguous tensors, got strides {value.stride()}")
        known = buffers.get(value.data_ptr())
        if known is None:
            flags = self._cl.mem_flags.READ_WRITE | self._cl.mem_flags.COPY_HOST_PTR
            buffer = self._cl.Buffer(self._context, flags, hostbuf=_memory(value))
            known = buffers[value.data_ptr()] = value, buffer
        return known[1]


def _memory(tensor: Tensor) -> Any:
    return tensor.detach().view(-1).view(torch.uint8).numpy()
