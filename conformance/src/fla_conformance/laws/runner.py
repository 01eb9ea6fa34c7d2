"""Runs calls on one implementation for laws, and makes sure that it is the one that ran."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.inputs import Inputs, make_inputs
from fla_conformance.laws.law import NotExecutedError
from fla_conformance.numerics import gradient_name
from fla_conformance.reach import candidate_of, declared
from fla_conformance.run import Target
from fla_conformance.witness import Witness, only
from fla_core.contracts import CONTRACTS
from fla_core.dispatch.candidates import Candidate
from fla_core.dispatch.runtime import RUNTIME

Through = Callable[[dict[str, Tensor]], dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Ran:
    """What one call gave.

    Attributes:
        outputs: by name, detached.
        gradients: by input name; empty for a forward case.
        plan: what computed it.
    """

    outputs: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    plan: str

    @property
    def named(self) -> dict[str, Tensor]:
        """Outputs by name, and gradients as ``dNAME``."""
        return {**self.outputs, **{gradient_name(n): g for n, g in self.gradients.items()}}


class Runner:
    """Runs one implementation, alone.

    Attributes:
        identity: ``plugin:contract#variant``.
        device: adapter of the device where tensors lie.
        claims: what the implementation claims.
        plan: the plan of the last run.
    """

    def __init__(self, target: Target) -> None:
        self.identity = target.implementation
        self.device = target.device
        self.claims = target.declaration.claims
        self.plan = ""
        self._arch = target.arch
        self._candidate = candidate_of(target.implementation)
        self._stack = ExitStack()
        self._witness: Witness | None = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.pause()

    @property
    def plugin(self) -> str:
        """Name of the plugin."""
        return self.identity.partition(":")[0]

    @property
    def exact(self) -> bool:
        """Whether equal calls must give equal bits."""
        return bool(self.claims & {"deterministic", "batch_invariant"})

    def pause(self) -> None:
        """Let other implementations run again, until the next :meth:`run`."""
        self._stack.close()
        self._witness = None

    def inputs(self, case: Case) -> Inputs:
        """The inputs of a case on the runner's device."""
        return make_inputs(case, self.device.device)

    def takes(self, case: Case) -> bool:
        """Whether the declaration takes a case."""
        return self._accepts(case, self._candidate)

    def _accepts(self, case: Case, candidate: Candidate) -> bool:
        return declared(case, candidate, self.device.device.type, self._arch).ok

    def run(
        self,
        inputs: Inputs,
        needs: Iterable[str] | None = None,
        grads: Mapping[str, Tensor] | None = None,
        through: Through | None = None,
    ) -> Ran:
        """Run a call, in a backward case with its gradients.

        Args:
            inputs: the call; its tensors are handed on as they are, strides and all.
            needs: inputs whose gradient is wanted; ``inputs.wanted`` by default.
            grads: incoming gradients by output, those left out stay None; ``inputs.grads`` by
                default.
            through: makes the call instead of ``inputs.run``, given its tensors by name.

        Raises:
            NotExecutedError: something else than the implementation computed it.
        """
        self.device.seed(inputs.case.seed)
        ran = self.issue(inputs, needs, grads, through)
        self.device.sync()
        return ran

    def issue(
        self,
        inputs: Inputs,
        needs: Iterable[str] | None = None,
        grads: Mapping[str, Tensor] | None = None,
        through: Through | None = None,
    ) -> Ran:
        """:meth:`run` that neither seeds nor waits: a stream that is captured allows neither."""
        self._alone()
        ran = run_inputs(inputs, needs, grads, through)
        self._saw(1, backward=bool(ran.gradients))
        return Ran(ran.outputs, ran.gradients, self.plan)

    def interleaved(self, *calls: Inputs) -> list[Ran]:
        """Run backward calls, all forwards first; then the backwards, in a thread of their own.

        Raises:
            NotExecutedError: something else than the implementation computed them.
        """
        self._alone()
        self.device.seed(calls[0].case.seed)
        begun = [Pending.of(inputs, inputs.wanted) for inputs in calls]
        with ThreadPoolExecutor(1) as pool:
            ran = list(pool.map(Pending.finish, begun, (inputs.grads for inputs in calls)))
        self.device.sync()
        self._saw(len(calls), backward=True)
        return ran

    def _alone(self) -> Witness:
        if self._witness is None:
            self._witness = self._stack.enter_context(only(self.identity))
        self._witness.take()
        return self._witness

    def _saw(self, calls: int, backward: bool) -> None:
        """Make sure that the implementation ran so many times in each direction."""
        assert self._witness is not None
        runs = self._witness.take()
        ahead = [run for run in runs if run.direction in ("forward", "pooled")]
        back = [run for run in runs if run.direction == "backward"]
        for direction, found in (("forward", ahead), ("backward", back)):
            if len(found) < calls and (backward or direction == "forward"):
                raise NotExecutedError(f"{self.identity} did not run {direction}")
        self.plan = ahead[0].plan

    def sibling(self, contract: str, case: Case) -> str | None:
        """An implementation of another contract that takes a case: of this plugin, or else core's.

        Compared with core's reference, an identity still says something of this implementation.
        """
        self.pause()
        found = RUNTIME.contract(CONTRACTS[contract]).candidates
        for plugin in (self.plugin, "reference"):
            for other in found:
                if other.record.name == plugin and self._accepts(case, other):
                    return other.identity
        return None

    def run_sibling(self, identity: str, inputs: Inputs) -> Ran:
        """Run a call on another implementation."""
        self.pause()
        with only(identity):
            return run_inputs(inputs)


def run_inputs(
    inputs: Inputs,
    needs: Iterable[str] | None = None,
    grads: Mapping[str, Tensor] | None = None,
    through: Through | None = None,
) -> Ran:
    """Run a call through dispatch; see :meth:`Runner.run`."""
    call = through or inputs.run
    if inputs.case.direction == "fwd":
        with torch.no_grad():
            return Ran(call(inputs.present), {}, "")
    begun = Pending.of(inputs, inputs.wanted if needs is None else needs, call)
    return begun.finish(inputs.grads if grads is None else grads)


@dataclass(frozen=True, slots=True)
class Pending:
    """A call whose backward is still to come."""

    leaves: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @classmethod
    def of(cls, inputs: Inputs, needs: Iterable[str], through: Through | None = None) -> Pending:
        """Run forward; these gradients will be wanted."""
        wanted = set(needs)
        leaves = {n: t.detach().requires_grad_(n in wanted) for n, t in inputs.present.items()}
        return cls(leaves, (through or inputs.run)(leaves))

    def finish(self, grads: Mapping[str, Tensor]) -> Ran:
        """Run backward, with these gradients of outputs coming in."""
        roots = [name for name in self.outputs if name in grads]
        wanted = sorted(name for name, leaf in self.leaves.items() if leaf.requires_grad)
        found = torch.autograd.grad(
            [self.outputs[name] for name in roots],
            [self.leaves[name] for name in wanted],
            [grads[name] for name in roots],
        )
        detached = {name: output.detach() for name, output in self.outputs.items()}
        return Ran(detached, dict(zip(wanted, found, strict=True)), "")
