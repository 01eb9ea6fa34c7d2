"""Compiling kernels side by side on idle cores, each with the C code that will launch it.

Triton by itself compiles that code, 0.4 s of a C compiler, as one kernel after another is launched.

It holds the interpreter while it makes intermediate code of a kernel's source, a tenth of the time
that a kernel takes. Threads do that one after another, what takes longest first: taking turns every
few milliseconds, all of them would come to the rest, which holds nothing, when the last one does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import Context
from types import SimpleNamespace
from typing import Any

SECONDS = {"delta_channel_within": 3.0, "chunk_gradients": 2.2, "delta_errors": 1.7}
"""What the longest take to compile for sm90 on one core, by name of a kernel; backends add theirs.

Only the order matters, and to nothing but the time that a first call takes.
"""

Wanted = tuple[Any, tuple[Any, ...], Mapping[str, Any]]
"""A kernel, arguments of the kinds it is compiled for, and what the compiler is told."""


def compiled_by_threads(kernel: Any) -> bool:
    """Whether threads would compile such a kernel now."""
    return idle_cores() >= 2 and _mode(kernel) is not None


def compile_together(wanted: Sequence[Wanted]) -> None:
    """Compile kernels for the current device if threads would; none that fails raises."""
    if wanted and compiled_by_threads(wanted[0][0]):
        # In a context of its own: the caller may have such a mode running.
        Context().run(_compile, wanted, _mode(wanted[0][0]), idle_cores())


def prepare() -> None:
    """Have ready what Triton makes once a process, each a third of a second and more.

    That is a hash of its own library and, if its cache is empty, C code that talks to the driver.
    The hash takes twice as long beside a thread that keeps the interpreter busy.
    """
    with suppress(Exception), ThreadPoolExecutor(1) as beside:
        from triton.runtime.cache import triton_key
        from triton.runtime.driver import driver

        beside.submit(triton_key)
        driver.active.get_current_device()


def idle_cores() -> int:
    """Cores that nobody kept busy in the last minute, as many as this process may use.

    Where many processes compile, as workers of a test do, threads of each would only take memory.
    """
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    cores = os.cpu_count() or 1
    # A scheduler of jobs gives each some cores of a machine.
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    return min(own, int(cores - busy))


def _mode(kernel: Any) -> Any:
    """Triton's own mode in which kernels go to threads.

    None for what the interpreter runs, which is not compiled, and of versions without one.
    """
    import triton
    from triton.runtime.jit import JITFunction

    return getattr(triton, "AsyncCompileMode", None) if isinstance(kernel, JITFunction) else None


def _compile(wanted: Sequence[Wanted], mode: Any, most: int) -> None:
    turn = threading.Lock()
    # Of one kernel the last first: what backward keeps makes it longer.
    longest_first = sorted(wanted, key=lambda one: SECONDS.get(one[0].__name__, 0.0))[::-1]
    prepare()
    with (
        # A kernel and what launches it.
        ThreadPoolExecutor(max(1, min(2 * len(wanted), most))) as threads,
        mode(threads, ignore_errors=True),
    ):
        for kernel, arguments, told in longest_first:
            with suppress(Exception), _sources(kernel, turn, threads):
                kernel.warmup(*arguments, grid=(1,), **told)


@contextmanager
def _sources(kernel: Any, turn: threading.Lock, threads: ThreadPoolExecutor) -> Iterator[None]:
    """Have a kernel that is asked for in the block make its intermediate code in its turn.

    Before, a thread is asked for what will launch it.
    """
    from triton.runtime.driver import driver

    kernel.device_caches[driver.active.get_current_device()]  # which settles what sources are

    def source(*arguments: Any) -> Any:
        made = original(*arguments)

        def make_ir(target: Any, options: Any, *others: Any) -> Any:
            del made.make_ir
            # A launch of another thread may take this for its own and outlive these threads.
            with suppress(RuntimeError):
                threads.submit(_launcher, driver, made, options)
            with turn:
                return made.make_ir(target, options, *others)

        made.make_ir = make_ir
        return made

    with _replacing:
        original = kernel.ASTSource
        kernel.ASTSource = source
        try:
            yield
        finally:
            kernel.ASTSource = original


_replacing = threading.RLock()
"""Held while a kernel's sources are not its own: who came between would put back another's.

A hook of Triton's that launches kernels comes by here again, in the same thread.
"""


_SCRATCH = {
    f"{memory}_scratch_{what}": 0 for memory in ("global", "profile") for what in ("size", "align")
}
"""What launchers keep of a kernel's metadata, beside what the compiler was told."""


def _launcher(driver: Any, source: Any, options: Any) -> None:
    """Have the C code compiled that launches a kernel; the launch finds it in Triton's cache.

    It depends on the kinds of arguments, not on what becomes of the kernel.
    """
    driver.active.launcher_cls(source, SimpleNamespace(**_SCRATCH, **vars(options)))
