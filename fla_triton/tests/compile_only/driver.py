"""A driver of a chip that is not there: launches are compiled for it, recorded and skipped.

Host code runs as it is, on tensors of the CPU. What Triton specialises on, the dtypes and alignment
of tensors, the integers of a launch, is what it would be on the chip.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.runtime.driver import driver as active_driver

from compile_only.resources import Resources, resources
from compile_only.targets import Target


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel, compiled once.

    Attributes:
        kernel: name of the function.
        dtype: of the first tensor, as Triton writes it.
        constants: its ``tl.constexpr`` parameters.
        warps, stages: what the compiler was told.
        seconds: that it took; of a cached kernel, to read it.
        resources: what the code takes.
    """

    kernel: str
    dtype: str
    constants: dict[str, Any]
    warps: int
    stages: int
    seconds: float
    resources: Resources


class Skipping:
    """A runtime that loads nothing, and counts launches in place of launching."""

    def __init__(self) -> None:
        self.launches = 0

    def load(self, name: str, code: bytes) -> object:
        """Something that stands for a kernel."""
        return name

    def launcher(self, source: Any, metadata: Any) -> Callable[..., None]:
        """What stands for the launch of a kernel."""

        def skip(*arguments: Any, **options: Any) -> None:
            self.launches += 1

        return skip


class Pretended:
    """What Triton asks of a driver, answered for a chip that is described by data."""

    def __init__(self, target: Target, runtime: Any) -> None:
        self._target = target
        self._runtime = runtime
        self.launcher_cls = runtime.launcher
        self.utils = SimpleNamespace(
            get_device_properties=self._properties,
            load_binary=self._load,
            unload_module=lambda module: None,
        )

    def _load(self, name: str, code: bytes, *others: Any) -> tuple[Any, ...]:
        # Module, function, registers, spills; then threads, where Triton has that field.
        loaded = (1, self._runtime.load(name, code), 0, 0)
        return loaded if self._target.backend == "xpu" else (*loaded, 1024)

    def _properties(self, device: int) -> dict[str, int]:
        profile = self._target.profile
        return {
            "max_shared_mem": profile.shared_memory,
            "multiprocessor_count": profile.multiprocessors,
            "warpSize": profile.warp_width,
            "max_num_regs": profile.registers,
        }

    def get_current_device(self) -> int:
        """Always the first."""
        return 0

    def set_current_device(self, device: int) -> None:
        """There is only one."""

    def get_current_stream(self, device: int | None = None) -> int:
        """The default stream."""
        return 0

    def get_current_target(self) -> Any:
        """What kernels are compiled for."""
        return self._target.gpu

    def get_active_torch_device(self) -> torch.device:
        """Where tensors lie."""
        return torch.device("cpu")

    def map_python_to_cpp_type(self, kind: str) -> str:
        """Launchers are not compiled."""
        return kind


@contextmanager
def pretending(
    target: Target, record: Callable[[Compiled], None], runtime: Any = None
) -> Iterator[None]:
    """Compile for a chip while the block lasts; ``record`` is called with each kernel, once.

    Args:
        target: the chip.
        record: called with each kernel when it is compiled.
        runtime: loads and launches; as ``Skipping`` does, which is the default.

    One block a process: kernels remember the compiler they met first.
    """
    original = triton.compiler.compile

    def compile_and_record(source: Any, *arguments: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        compiled = original(source, *arguments, **options)
        record(_described(source, compiled, time.perf_counter() - begin))
        return compiled

    triton.compiler.compile = compile_and_record
    active_driver.set_active(Pretended(target, runtime or Skipping()))
    try:
        yield
    finally:
        triton.compiler.compile = original
        active_driver.set_active(None)


def _described(source: Any, compiled: Any, seconds: float) -> Compiled:
    names = source.fn.arg_names
    first = next(kind for kind in source.signature.values() if kind.startswith("*"))
    return Compiled(
        kernel=source.name,
        dtype=first.removeprefix("*"),
        constants={names[path[0]]: value for path, value in source.constants.items()},
        warps=compiled.metadata.num_warps,
        stages=compiled.metadata.num_stages,
        seconds=seconds,
        resources=resources(compiled),
    )
