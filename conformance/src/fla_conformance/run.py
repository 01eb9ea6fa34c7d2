"""Run one case on one implementation and say what became of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.device import DeviceAdapter, examined
from fla_conformance.inputs import Inputs, make_inputs
from fla_conformance.numerics import gold, gradient_name, judge
from fla_conformance.result import Margin, Outcome, Result
from fla_conformance.witness import NotWitnessedError, missing, only
from fla_core.dispatch.runtime import backends
from fla_core.errors import ImplementationError, NoImplementationError, PluginLoadError
from fla_core.plugins.api import Implementation

DECLARED = frozenset({"device", "arch", "revision", "gradients", "validity", "domain"})
"""Stages of selection that rest on what an implementation declares."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is examined.

    Attributes:
        plugin: its name.
        implementation: ``plugin:contract#variant``.
        device: where.
        arch: architecture of the device.
        declaration: the implementation as the plugin declared it.
    """

    plugin: str
    implementation: str
    device: DeviceAdapter
    arch: str
    declaration: Implementation


def targets(plugin: str, device: str = "cpu") -> list[Target]:
    """Every implementation that a plugin declares, in its order.

    Raises:
        LookupError: there is no such plugin.
        PluginLoadError: it is broken, unavailable or excluded.
        AdapterError: its adapter for the device is none, or does not do what it should.
    """
    record = next((record for record in backends() if record.name == plugin), None)
    if record is None:
        names = ", ".join(record.name for record in backends())
        raise LookupError(f"there is no plugin {plugin!r}; installed are {names}")
    if record.backend is None:
        raise PluginLoadError(record)
    adapter, arch = examined(record, device)
    return [
        Target(plugin, f"{plugin}:{one.contract}#{one.variant}", adapter, arch, one)
        for one in record.implementations
    ]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back from one call.

    Attributes:
        values: outputs by name, and gradients as ``dq``.
        plan: plan that ran.
        changed: names of the arguments whose bytes changed.
        not_executed: what the witness missed, ``""`` when nothing.
    """

    values: Mapping[str, Tensor]
    plan: str
    changed: tuple[str, ...]
    not_executed: str


def answer(inputs: Inputs, target: Target) -> Answer:
    """Call the implementation alone, in poisoned memory; gradients if ``inputs.grads`` is given.

    Raises:
        NoImplementationError: it refuses.
        ImplementationError: core found it breaking the rules.
        Exception: whatever it raises.
    """
    backward = bool(inputs.grads)
    before = {name: _bytes(tensor).clone() for name, tensor in _arguments(inputs).items()}
    with only(target.implementation) as witness, target.device.poison():
        target.device.seed(inputs.case.seed)
        values = differentiated(inputs) if backward else _plain(inputs)
        target.device.sync()
    runs = witness.take()
    after = _arguments(inputs)
    changed = (n for n, old in before.items() if not torch.equal(old, _bytes(after[n])))
    wanted = ("forward", "backward") if backward else ("forward",)
    plan = runs[0].plan if runs else ""
    return Answer(values, plan, tuple(changed), missing(runs, wanted))


def _plain(inputs: Inputs) -> dict[str, Tensor]:
    with torch.no_grad():
        return inputs.run()


def differentiated(inputs: Inputs) -> dict[str, Tensor]:
    """Outputs, and the gradients that are wanted, ``inputs.grads`` coming in."""
    leaves = inputs.leaves
    wanted = inputs.wanted
    outputs = inputs.run(leaves)
    names = [name for name in outputs if name in inputs.grads]
    found = torch.autograd.grad(
        [outputs[name] for name in names],
        [leaves[name] for name in wanted],
        [inputs.grads[name] for name in names],
    )
    gradients = zip(map(gradient_name, wanted), found, strict=True)
    return {**{name: x.detach() for name, x in outputs.items()}, **dict(gradients)}


def _arguments(inputs: Inputs) -> dict[str, Tensor]:
    found = {**inputs.present, **{gradient_name(n): t for n, t in inputs.grads.items()}}
    if inputs.cu_seqlens is not None:
        found["cu_seqlens"] = inputs.cu_seqlens
    return found


def _bytes(tensor: Tensor) -> Tensor:
    # Flat first: an empty tensor may have strides that its bytes cannot be seen through.
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)


@dataclass(frozen=True, slots=True)
class _Verdict:
    outcome: Outcome
    detail: str = ""
    margin: Margin | None = None
    plan: str = ""


def run_case(case: Case, target: Target, level: str = "L1") -> Result:
    """Run one case and compare it with gold. What the implementation raises is its result.

    Raises:
        ValueError: the case contradicts itself.
    """
    start = time.perf_counter()
    inputs = make_inputs(case, target.device.device)
    try:
        found = answer(inputs, target)
    except Exception as error:
        verdict = _raised(error, target)
    else:
        verdict = _verdict(case, found)
    return Result(
        id=case.id,
        implementation=target.implementation,
        level=level,
        outcome=verdict.outcome,
        case=case.to_json(),
        detail=verdict.detail,
        margin=verdict.margin,
        plan=verdict.plan,
        seconds=time.perf_counter() - start,
    )


def _verdict(case: Case, found: Answer) -> _Verdict:
    if found.not_executed:
        return _Verdict(Outcome.NOT_EXECUTED, found.not_executed, plan=found.plan)
    right = gold(case)
    if problem := _shapes(found.values, right.values):
        return _Verdict(Outcome.FAIL_SHAPE, problem, plan=found.plan)
    judged = judge(case, found.values, right)
    if judged.failure:
        return _Verdict(Outcome.FAIL_NUMERIC, judged.failure, judged.margin, found.plan)
    if found.changed:
        detail = f"changed the bytes of {', '.join(found.changed)}"
        return _Verdict(Outcome.FAIL_LAW, detail, judged.margin, found.plan)
    return _Verdict(Outcome.PASS, "", judged.margin, found.plan)


def _shapes(got: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> str:
    wrong = (
        f"{name}: shape {list(got[name].shape)}, expected {list(value.shape)}"
        for name, value in right.items()
        if name in got and got[name].shape != value.shape
    )
    return "; ".join(wrong)


def _raised(error: Exception, target: Target) -> _Verdict:
    if isinstance(error, NotWitnessedError):
        return _Verdict(Outcome.NOT_EXECUTED, str(error))
    if isinstance(error, NoImplementationError):
        return _refused(error, target)
    if isinstance(error, ImplementationError):
        return _Verdict(_broken_rule(error), str(error))
    return _Verdict(Outcome.CRASH, f"{type(error).__name__}: {error}")


def _refused(error: NoImplementationError, target: Target) -> _Verdict:
    """A refusal that follows from the declaration, or one that nobody could foresee."""
    reached = {target.implementation, target.plugin}
    stages = [stage for name, stage, v in error.decision.considered if name in reached and not v.ok]
    declared = bool(stages) and stages[-1] in DECLARED
    outcome = Outcome.REFUSED_DECLARED if declared else Outcome.REFUSED_UNDECLARED
    return _Verdict(outcome, str(error))


def _broken_rule(error: ImplementationError) -> Outcome:
    if "wrong shape" not in error.problem:
        return Outcome.FAIL_LAW
    same_dtype = error.expected.partition("[")[0] == error.got.partition("[")[0]
    return Outcome.FAIL_SHAPE if same_dtype else Outcome.FAIL_DTYPE
