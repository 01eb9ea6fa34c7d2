"""L4: what torch asks of every operator, and each promise of an implementation, proved.

``deterministic``
    fifty runs of a call give the same bits.
``batch_invariant``
    a sample gives the same bits alone and in batches of 2, 3, 5 and 8.
``graph_capture``
    a warmed call is captured into a CUDA graph, and replayed on new values gives theirs.
``opcheck``, ``fullgraph``
    for everybody: the torch operator behind the call keeps its promises to the compiler, and a
    function around the call compiles without a graph break and gives what it gives eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.testing._internal.optests.generate_tests import OpCheckError

import fla_core.torch_ops  # noqa: F401  (defines the torch operators)
from fla_conformance.case import Case
from fla_conformance.inputs import Inputs, operator_of
from fla_conformance.laws import checks_of
from fla_conformance.laws.compare import disagreement
from fla_conformance.laws.law import Law, NotExecutedError
from fla_conformance.laws.repeat import batch_repeats, repeats
from fla_conformance.laws.runner import Runner
from fla_conformance.suite import Check, Settings
from fla_core.contract import Contract
from fla_core.plugins.api import Implementation
from fla_core.prepare import device_guard

_INFERENCE = frozenset({"states"})


def _graph_capture(case: Case, runner: Runner) -> str | None:
    device = runner.device.device
    if device.type != "cuda":
        raise NotExecutedError(f"graphs are captured on cuda, this is {device.type}")
    inputs = runner.inputs(case)
    later = runner.inputs(case.but(seed=case.seed + 1))
    wanted = dict(runner.run(later).outputs)
    runner.run(inputs)
    graph = torch.cuda.CUDAGraph()
    # What is captured is what is launched on the current device, which may be another.
    with device_guard(device), torch.cuda.graph(graph):
        captured = runner.issue(inputs).outputs
    for name, tensor in inputs.present.items():
        tensor.copy_(later.present[name])
    graph.replay()
    runner.device.sync()
    found = disagreement(captured, wanted, case.dtype, exact="deterministic" in runner.claims)
    return found and f"replayed on new values, {found}"


def _opcheck(case: Case, runner: Runner) -> str | None:
    inputs = runner.inputs(case)
    runner.run(inputs)  # the witness is on, so that nobody else is checked in its place
    arguments = _arguments(inputs, runner.plugin)
    overload = getattr(torch.ops.fla_core, case.contract).default
    try:
        torch.library.opcheck(overload, arguments)
    except OpCheckError as error:
        return f"opcheck: {error}"
    return None


def _arguments(inputs: Inputs, policy: str) -> tuple[object, ...]:
    """The arguments of the torch operator, in the order of its schema."""
    needs = inputs.wanted if inputs.case.direction == "bwd" else ()
    leaves = {**inputs.tensors, **(inputs.leaves if needs else {})}
    return (
        *(leaves[name] for name in inputs.case.definition.input_names),
        inputs.cu_seqlens,
        inputs.cu_seqlens_cpu,
        operator_of(inputs.case).name,
        inputs.scale,
        *inputs.options,
        "|".join(name for name in inputs.case.definition.flags if name in inputs.flags),
        "|".join(needs),
        policy,
        inputs.hints.chunk_size,
        inputs.hints.recompute,
        inputs.hints.safe_gate,
    )


def _fullgraph(case: Case, runner: Runner) -> str | None:
    inputs = runner.inputs(case)
    eager = runner.run(inputs).named
    names = list(inputs.present)
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def compiled(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(inputs.run(dict(zip(names, tensors, strict=True))).values())

    try:
        traced = runner.run(inputs, through=_through(compiled, inputs)).named
    finally:
        torch._dynamo.reset()
    found = disagreement(traced, eager, case.dtype)
    return found and f"compiled, {found}"


def _through(
    compiled: Callable[..., tuple[Tensor, ...]], inputs: Inputs
) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    def call(leaves: dict[str, Tensor]) -> dict[str, Tensor]:
        return dict(zip(inputs.output_names, compiled(*leaves.values()), strict=True))

    return call


CLAIMS: dict[str, Law] = {
    law.name: law
    for law in (
        Law(
            "deterministic",
            "fifty runs of a call give the same bits",
            repeats(50, True),
            level="L4",
            long=True,
        ),
        Law(
            "batch_invariant",
            "a sample gives the same bits whoever is beside it",
            batch_repeats((2, 3, 5, 8), True),
            avoids=frozenset({"varlen", "states"}),
            level="L4",
            long=True,
        ),
        Law(
            "graph_capture",
            "a warmed call can be captured and replayed",
            _graph_capture,
            avoids=_INFERENCE,
            direction="fwd",
            level="L4",
        ),
    )
}
"""What an implementation may claim, and its proof."""

ALWAYS: dict[str, Law] = {
    law.name: law
    for law in (
        Law(
            "opcheck",
            "the torch operator keeps its promises to the compiler",
            _opcheck,
            avoids=_INFERENCE,
            level="L4",
        ),
        Law(
            "fullgraph",
            "the call compiles without a graph break",
            _fullgraph,
            avoids=_INFERENCE,
            level="L4",
        ),
    )
}
"""What is asked of every implementation."""


def checks(
    contract: Contract, implementation: Implementation, settings: Settings
) -> Iterator[Check]:
    """One check for each claim, and for what is asked of everybody, on each of its cases.

    A claim that nobody can prove is a check that fails.
    """
    known = [CLAIMS[name] for name in sorted(implementation.claims) if name in CLAIMS]
    unknown = [_unprovable(name) for name in sorted(implementation.claims - set(CLAIMS))]
    laws = [*known, *unknown, *ALWAYS.values()]
    yield from checks_of(laws, contract, implementation, settings)


def _unprovable(name: str) -> Law:
    text = f"there is no such claim as {name!r}; provable are {', '.join(CLAIMS)}"
    return Law(name, "an unknown claim", lambda case, runner: text, level="L4")
