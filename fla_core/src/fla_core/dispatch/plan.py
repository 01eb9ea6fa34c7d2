"""Plans: decisions with everything a call needs, kept by the facts they rest on."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fla_core.contract import Contract, Lowering
from fla_core.dispatch import notices, resolve
from fla_core.dispatch.candidates import Candidate
from fla_core.dispatch.decision import Decision
from fla_core.dispatch.lowered import Fit
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
        mark: number that tells this decision's residuals from those of others.
        pooled: ``pooled(call, slots)``, None where core copies states out of a pool and back.
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
    mark: int
    pooled: Callable[..., Any] | None = None

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
    kept: bool = True,
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
        kept: whether the plan is for later calls too. Of one that is not, nothing is told either:
            it is for tensors without data, which nobody will compute with.

    Raises:
        PolicyError: the policy cannot be understood.
        NoImplementationError: nobody accepts, and the policy is closed to the reference.
        PluginLoadError: the only plugin that the policy allows is broken.
    """
    if traced and gradients:
        sizes = (None, None, *sizes[2:6], None)
    known = RUNTIME.known.get(contract.name) or RUNTIME.contract(contract)
    plans = RUNTIME.plans
    if traced:
        sizes = known.numbers(sizes)
    key = (operator, form, device, dtypes, known.pick(sizes), features, gradients, traced, policy)
    plan = plans.get(key)
    if plan is None:
        view = CallView(
            contract=contract.name,
            form=form,
            device=device.type,
            arch="",
            dtype=dtype_name(dtype),
            dtypes=_named(contract, dtypes),
            axes=known.axes(sizes),
            features=features,
            gradients=gradients,
            traced=traced,
        )
        plan = _make(resolve.Request(contract, operator, device, view, policy), told=kept)
        if kept:
            if len(plans) >= MAX_PLANS:
                plans.clear()
            plans[key] = plan
    return plan


def bound_plan(
    contract: Contract,
    operator: str,
    form: str,
    device: Any,
    dtype: Any,
    features: frozenset[str],
    identity: str,
) -> Plan:
    """Return the plan of one implementation, without selection: backward binds forward's choice.

    Args:
        contract: what is computed.
        operator: public name the call was made under.
        form: form of the call.
        device: its device.
        dtype: dtype of q.
        features: features in use, as in the forward call.
        identity: id of the implementation that forward ran with.

    Raises:
        LookupError: no plugin that is loaded has such an implementation.
        PluginLoadError: its functions cannot be imported.
    """
    plans = RUNTIME.plans
    key = (identity, operator, form, device, dtype, features)
    plan = plans.get(key)
    if plan is None:
        name = dtype_name(dtype)
        view = CallView(contract.name, form, device.type, "", name, {"q": name}, {}, features)
        request = resolve.Request(contract, operator, device, view, "")
        state, chosen, fitted = resolve.bind(RUNTIME, request, identity)
        plan = plans[key] = _plan(state.decision(), chosen, fitted)
    return plan


def _make(request: resolve.Request, told: bool) -> Plan:
    state = resolve.search(RUNTIME, request)
    decision = state.decision()
    RUNTIME.trace.decided(decision)
    if state.chosen is None or state.fit is None:
        raise resolve.no_implementation(state)
    if told:
        notices.after_selection(state, decision)
    return _plan(decision, state.chosen, state.fit)


def dtype_name(dtype: Any) -> str:
    """``"bfloat16"`` of a torch dtype or of that name."""
    return str(dtype).removeprefix("torch.")


def _named(contract: Contract, dtypes: tuple[Any, ...]) -> dict[str, str]:
    pairs = zip(contract.input_names, dtypes, strict=True)
    return {name: dtype_name(dtype) for name, dtype in pairs if dtype is not None}


def _plan(decision: Decision, candidate: Candidate, fitted: Fit) -> Plan:
    backward, pooled = candidate.function("backward"), candidate.function("pooled")
    watch = RUNTIME.trace.watch
    return Plan(
        decision=decision,
        id=candidate.identity,
        plugin=candidate.record.name,
        implementation=candidate.implementation,
        lowerings=fitted.lowerings,
        features=fitted.view.features,
        forward=watch(candidate.function("forward"), "forward", decision),
        backward=None if backward is None else watch(backward, "backward", decision),
        residuals=candidate.function("residuals"),
        strided=candidate.implementation.strided,
        mark=zlib.crc32(decision.plan.encode()),
        pooled=None if pooled is None else watch(pooled, "pooled", decision),
    )
