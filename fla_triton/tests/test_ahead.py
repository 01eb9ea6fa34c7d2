"""First calls have their kernels, and those of the backward pass, compiled side by side."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import programs

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from fla_triton import ahead, together


def compiled_ahead(*arguments: str) -> list[dict[str, Any]]:
    """Run the driver in a process of its own: kernels remember the compiler they met first."""
    run = programs.run("compiled_ahead", "sm90", *arguments)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.parametrize(
    "own", [(), *(("--kernels", f"fla_backend_cuda.hopper.{x}") for x in ("delta", "decay"))]
)
def test_no_call_compiles_by_itself(own: tuple[str, ...]) -> None:
    lines = compiled_ahead(*own)
    assert [line for line in lines if line["call"]] == []
    threads = {line["contract"]: line["threads"] for line in lines if line["what"] == "chunk"}
    assert all(count > 2 for count in threads.values()), threads
    assert [line for line in lines if line["symbolic"]] == []
    # What backward needs was foreseen, unless few gradients are wanted.
    foreseen = [x for x in lines if "gradients" in x["what"] and "gradients of 1" not in x["what"]]
    assert foreseen
    assert [line for line in foreseen if line["threads"]] == []


def test_on_a_busy_machine_calls_compile() -> None:
    lines = compiled_ahead("--alone")
    assert all(line["threads"] == 0 for line in lines)
    assert sum(line["call"] for line in lines) > 20


def test_a_call_is_run_again_once_and_what_it_raises_is_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(together, "idle_cores", lambda: 4)
    runs: list[int] = []

    def again() -> None:
        runs.append(len(runs))
        assert ahead.current.noted == []
        raise RuntimeError("as the call will")

    ahead.current.again = again
    for _ in range(2):
        ahead.compile_missing(_kernel())
        assert ahead.current.noted is None
    assert runs == [0]


def test_modes_of_the_caller_do_not_see_what_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Selective checkpointing keeps what it sees, and hands it out when recomputing."""
    monkeypatch.setattr(together, "idle_cores", lambda: 4)
    seen: list[Any] = []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    made: list[Tensor] = []

    def again() -> None:
        x = ahead.without_memory(real)
        assert x is not None
        made.extend((x.new_zeros(2), torch.empty_like(x), x[:1].sum(0), x + x))

    with Seeing():
        real = torch.zeros(3, 4)
        before = len(seen)
        ahead.current.again = again
        ahead.compile_missing(_kernel())
        assert len(seen) == before
        assert [x.device.type for x in made] == ["meta"] * 4
        torch.zeros(1)
        assert len(seen) > before  # they are on again


@pytest.mark.parametrize(
    "make",
    [
        torch.empty_like,
        lambda x: torch.empty_like(x, dtype=torch.float64),
        lambda x: torch.empty_like(x.transpose(0, 1)),
        lambda x: x.sum(0),
        lambda x: x.sum(1),
        lambda x: x.sum(0, keepdim=True),
        lambda x: x.to(torch.int32).sum(0),
    ],
)
def test_what_is_made_without_memory_is_what_torch_makes(make: Callable[[Tensor], Tensor]) -> None:
    x = torch.empty(3, 4, 5, dtype=torch.bfloat16, device="meta")
    with ahead._Plainly():
        found = make(x)
    wanted = make(x)
    assert (found.shape, found.stride(), found.dtype, found.device) == (
        wanted.shape,
        wanted.stride(),
        wanted.dtype,
        wanted.device,
    )


def test_what_is_interpreted_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "idle_cores", lambda: 4)
    ahead.current.again = lambda: pytest.fail("run again")
    ahead.compile_missing(object())
    assert ahead.current.again is None


def _kernel() -> Any:
    import triton

    def nothing(x: Any) -> None:
        """No code."""

    return triton.runtime.jit.JITFunction(nothing)
