"""Plans: decisions with everything a call needs, kept by the facts they rest on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fla_core.contract import Contract, Lowering
from fla_core.dispatch import notices, resolve
from fla_core.dispatch.candidates import Candidate, picked
from fla_core.dispatch.decision import Decision
from fla_core.dispatch.runtime import RUNTIME
from fla_core.plugins.api import Implementation
from fla_core.verify import CallView

MAX_PLANS = 8192
"""A plugin that constrains T makes a plan for every length; beyond this many all are dropped."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How calls of one class are served.

    Attributes:
        decision: why.
        id: ``plugin:contract#variant``.
        plugin: name of the plugin.
        implementation: its declaration.
        lowerings: applied around it, in order.
        features: features of the lowered call.
        forward: ``forward(call, save)``.
        backward: ``backward(call, residuals, grads, needs)``, None when forward only.
        residuals: ``residuals(call)``, None when there are none.
        strided: any strides are fine; otherwise tensors must be contiguous.
    """

    decision: Decision
    id: str
    plugin: str
    implementation: Implementation
    lowerings: tuple[Lowering, ...]
    features: frozenset[str]
    forward: Callable[..., Any]
    backward: Callable[..., Any] | None
    residuals: Callable[..., Any] | None
    strided: bool

    def annotate(self, error: BaseException) -> None:
        """Note on an error that left an implementation which one it was and why it was chosen."""
        note = f"while running {self.decision.render()}"
        # Python 3.10 has no notes; the implementation's name is in its traceback.
        if hasattr(error, "add_note") and note not in getattr(error, "__notes__", ()):
            error.add_note(note)


def find_plan(
    contract: Contract,
    operator: str,
    form: str,
    device: Any,
    dtype: Any,
    dtypes: tuple[Any, ...],
    sizes: tuple[int | None, ...],
    features: frozenset[str],
    gradients: frozenset[str],
    traced: bool,
    policy: str,
) -> Plan:
    """Return the plan for a class of calls; a hit costs one tuple and one lookup.

    Args:
        contract: what is computed.
        operator: public name the call was made under (or the contract's).
        form: ``"chunk"``, ``"recurrent"`` or ``"parallel"``.
        device: a torch device, or anything hashable with ``.type`` and ``.index``.
        dtype: dtype of q.
        dtypes: dtype of each input in the order of ``contract.inputs``, None where absent; torch
            dtypes or their names.
        sizes: in the order ``B T H HV K V N``; None where unknown or not an axis of the contract.
        features: features in use.
        gradients: inputs whose gradient is wanted, empty for inference.
        traced: inside ``torch.compile``; B, T and N then do not count if gradients are wanted.
        policy: from :func:`fla_core.dispatch.context.policy_text`.

    Raises:
        PolicyError: the policy cannot be understood.
        NoImplementationError: nobody accepts, and the policy is closed to the reference.
        PluginLoadError: the only plugin that the policy allows is broken.
    """
    if traced and gradients:
        sizes = (None, None, *sizes[2:6], None)
    pick = RUNTIME.pickers.get(contract.name)
    if pick is None:
        resolve.prepare(RUNTIME, contract)
        pick = RUNTIME.pickers[contract.name]
    key = (operator, form, device, dtypes, pick(sizes), features, gradients, traced, policy)
    plan = RUNTIME.plans.get(key)
    if plan is None:
        plan = make_plan(
            contract,
            operator,
            form,
            device,
            dtype,
            dtypes,
            sizes,
            features,
            gradients,
            traced,
            policy,
        )
        if len(RUNTIME.plans) >= MAX_PLANS:
            RUNTIME.plans.clear()
        RUNTIME.plans[key] = plan
    return plan


def make_plan(
    contract: Contract,
    operator: str,
    form: str,
    device: Any,
    dtype: Any,
    dtypes: tuple[Any, ...],
    sizes: tuple[int | None, ...],
    features: frozenset[str],
    gradients: frozenset[str],
    traced: bool,
    policy: str,
) -> Plan:
    """Resolve without looking into the kept plans; arguments as for :func:`find_plan`."""
    names = {
        name: dtype_name(each)
        for name, each in zip(contract.input_names, dtypes, strict=True)
        if each is not None
    }
    view = CallView(
        contract=contract.name,
        form=form,
        device=device.type,
        arch="",
        dtype=dtype_name(dtype),
        dtypes=names,
        axes=picked(RUNTIME.candidates[contract.name], sizes),
        features=features,
        gradients=gradients,
        traced=traced,
    )
    request = resolve.Request(contract, operator, device, view, policy)
    state, candidate, lowered = resolve.search(RUNTIME, request)
    if candidate is None or lowered is None:
        raise resolve.no_implementation(state)
    decision = state.decision(candidate, lowered)
    fell_back = candidate.record.built_in and state.governing.rule.open
    notices.after_selection(state, decision, fell_back)
    return _plan(decision, candidate, lowered.lowerings, lowered.view.features)


def dtype_name(dtype: Any) -> str:
    """``"bfloat16"`` of a torch dtype or of that name."""
    return str(dtype).removeprefix("torch.")


def _plan(
    decision: Decision,
    candidate: Candidate,
    lowerings: tuple[Lowering, ...],
    features: frozenset[str],
) -> Plan:
    return Plan(
        decision=decision,
        id=candidate.identity,
        plugin=candidate.record.name,
        implementation=candidate.implementation,
        lowerings=lowerings,
        features=features,
        forward=candidate.function("forward"),
        backward=candidate.function("backward"),
        residuals=candidate.function("residuals"),
        strided=candidate.implementation.strided,
    )


__all__ = ["Decision", "Plan", "find_plan", "make_plan"]
