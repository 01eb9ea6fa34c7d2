"""Launching kernels with little Python: what the compiler specialises on is looked up, not redone.

Triton's own launch binds and inspects every argument anew, which for a kernel of thirty arguments
takes as long as a small kernel runs. Kernels launched here take tensors, None and numbers first,
then constants; their numbers are never specialised, so that the kinds of arguments decide which
compiled kernel serves. Calls of one signature need not even look that up: see :class:`Launches`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime import driver

from fla_core.errors import UnsupportedError
from fla_core.seqlens import capturing
from fla_triton import ahead
from fla_triton.plan import Launch

_INT32 = 2**31
ALIGNMENT = 16
"""Bytes; a kernel that was compiled for addresses that are multiples of it serves no others."""

_RAW_FORM = triton.__version__.startswith("3.6.")
"""Whether the launcher inside a compiled kernel is called as it is known to be in this version."""


class Ready:
    """A compiled kernel for one device and one set of kinds of arguments."""

    __slots__ = (
        "_compiled",
        "_constants",
        "_device",
        "_head",
        "_kernel",
        "_places",
        "_run",
    )

    def __init__(
        self, kernel: Any, compiled: Any, arguments: tuple[Any, ...], constants: tuple[Any, ...]
    ) -> None:
        self._kernel = kernel  # looked up by its identity, which must not pass to another
        self._compiled = compiled
        self._constants = constants
        self._places = tuple(i for i, a in enumerate(arguments) if isinstance(a, Tensor))
        self._device = arguments[0].device.index
        self._run: Callable[..., object] | None = None
        if _RAW_FORM and compiled.metadata.target.backend == "cuda":
            self._run, self._head = _raw_form(compiled)

    def raw(
        self, grid: int, stream: object
    ) -> tuple[Callable[..., object], list[Any], list[Any]] | None:
        """The launcher that takes addresses, and what it takes before and after the arguments.

        None where it is not known.
        """
        if self._run is None:
            return None
        return self._run, [grid, 1, 1, stream, *self._head], list(self._constants)

    def repeat(self, grid: int, arguments: tuple[Any, ...]) -> bool:
        """Launch for arguments that differ in numbers and addresses only.

        Returns:
            whether it did: an address that is no multiple of 16 wants another kernel.
        """
        passed, addresses = list(arguments), 0
        for place in self._places:
            passed[place] = address = arguments[place].data_ptr()
            addresses |= address
        if addresses % ALIGNMENT:
            return False
        self.launch(grid, arguments, passed)
        return True

    def launch(self, grid: int, arguments: tuple[Any, ...], passed: list[Any]) -> None:
        """Launch for arguments of the kinds it was compiled for; ``passed`` has addresses."""
        run = self._run
        if run is None or hooked():
            self._compiled[(grid, 1, 1)](*arguments, *self._constants)
            return
        # On an H200's host 8.8 us with twelve tensors, against 14 of the public form; addresses
        # spare the launcher a look at each tensor besides.
        run(grid, 1, 1, stream_of(self._device), *self._head, *passed, *self._constants)


def _raw_form(compiled: Any) -> tuple[Callable[..., object], tuple[Any, ...]]:
    """The launcher inside a compiled kernel, and what it takes between stream and arguments."""
    run, hooks = compiled.run, (None, None, None)
    scratch = ("global_scratch_size", "profile_scratch_size")
    if any(getattr(run, name, 1) for name in scratch):
        return run, (compiled.function, compiled.packed_metadata, *hooks)
    # One that allocates nothing leaves the rest to what was compiled for it.
    switches = (run.launch_cooperative_grid, run.launch_pdl, None, None)
    return run.launch, (compiled.function, *switches, compiled.packed_metadata, *hooks)


def stream_of(device: int | None) -> int:
    """The current stream of a device."""
    stream: int = driver.active.get_current_stream(device)
    return stream


_compiled: dict[tuple[Any, ...], Ready] = {}


def launch(
    kernel: Any,
    grid: int,
    arguments: tuple[Any, ...],
    constants: Mapping[str, Any],
    warps: int,
    stages: int,
    registers: int | None = None,
) -> Ready | None:
    """Run a kernel on the current device and stream.

    Args:
        kernel: a ``triton.jit`` function, none of whose numbers is specialised.
        grid: programs on axis 0; nothing happens when there are none.
        arguments: what comes before the constants, in order; the first is a tensor.
        constants: ``tl.constexpr`` parameters by name.
        warps, stages: of a program.
        registers: of a thread, where the plan limits them.

    Returns:
        what ran, None if nothing did, it was interpreted or only noted (:mod:`fla_triton.ahead`).

    Raises:
        UnsupportedError: the kernel would have to be compiled while a CUDA graph is captured.
    """
    if not grid:
        return None
    kinds, passed = _kinds(arguments)
    # Triton hashes a kernel by its source, under a lock.
    what = (arguments[0].device, id(kernel), warps, stages, registers)
    key = (*what, *constants, *constants.values(), *kinds)
    ready = _compiled.get(key)
    if ready is not None:
        ready.launch(grid, arguments, passed)
        return ready
    told = {**constants, "num_warps": warps, "num_stages": stages}
    if registers is not None:
        told["maxnreg"] = registers
    if ahead.current.noted is not None:
        ahead.current.noted.append(ahead.Noted(kernel, grid, arguments, told, key[1:]))
        return None
    _refuse_capture(kernel, arguments[0])
    ahead.compile_missing(kernel)
    compiled = kernel[(grid,)](*arguments, **told)
    if compiled is None:  # the interpreter compiles nothing
        return None
    ordered = tuple(constants[name] for name in kernel.arg_names[len(arguments) :])
    ready = _compiled[key] = Ready(kernel, compiled, arguments, ordered)
    return ready


def ready_for(noted: ahead.Noted, device: torch.device) -> Ready | None:
    """What would make a launch that was noted, if it was compiled for the device."""
    return _compiled.get((device, *noted.key))


Settling = tuple[Any, Launch, Mapping[str, Any]]
"""Kernel, planned launch, and the constants that are not the plan's."""


class Launches:
    """The launches of calls that differ in numbers, addresses and boundaries only, by name.

    The first call of a name goes through :func:`launch`. Later ones fetch addresses and go; they
    neither build constants nor look at dtypes, so a name must always stand for the same ones.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, tuple[Ready, int]] = {}

    def run(
        self,
        name: str,
        arguments: tuple[Any, ...],
        settle: Callable[[], Settling],
        grid: int | None = None,
    ) -> None:
        """Run a kernel on the current device and stream.

        Args:
            name: of the launch; its kernel, constants, and the presence and dtype of each argument
                are those of earlier calls.
            arguments: what comes before the constants, in order; the first is a tensor.
            settle: called when the name is new, or an address is not aligned as usual.
            grid: programs where boundaries decide how many; the plan's when None.
        """
        known = self._known.get(name)
        if known is not None:
            ready, planned_grid = known
            programs = planned_grid if grid is None else grid
            if not programs or ready.repeat(programs, arguments):
                return
        kernel, planned, constants = settle()
        programs = planned.grid if grid is None else grid
        merged = {**constants, **planned.constants}
        told = (planned.warps, planned.stages, planned.registers)
        ran = launch(kernel, programs, arguments, merged, *told)
        if ran is not None and _aligned(arguments):
            self._known[name] = ran, programs


def _aligned(arguments: tuple[Any, ...]) -> bool:
    return not any(a.data_ptr() % ALIGNMENT for a in arguments if isinstance(a, Tensor))


def _kinds(arguments: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """What a compiled kernel depends on, and the arguments with addresses in place of tensors.

    Of a tensor that is dtype and alignment, of an integer its width, of anything else its type.
    """
    kinds: list[Any] = []
    passed: list[Any] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            address = argument.data_ptr()
            kinds += (argument.dtype, address % ALIGNMENT == 0)
            passed.append(address)
        else:
            narrow = isinstance(argument, int) and -_INT32 <= argument < _INT32
            kinds += (type(argument), narrow)
            passed.append(argument)
    return kinds, passed


def hooked() -> bool:
    """Whether somebody, a profiler say, wants to hear of each launch."""
    runtime = triton.knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def _refuse_capture(kernel: Any, like: Tensor) -> None:
    if capturing(like):
        raise UnsupportedError(
            kernel.__name__,
            "compiling a kernel while a CUDA graph is captured",
            "run the call once with the same shapes before the capture",
        )
