"""Every way a case can end, each brought about by an implementation that does just that."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fla_conformance.case import Case
from fla_conformance.inputs import make_inputs
from fla_conformance.result import Outcome, Result
from fla_conformance.run import run_case, targets
from fla_conformance.witness import missing, only
from fla_core.domain import AxisRange, Domain
from fla_core.ops.gla import chunk_gla
from fla_core.ops.simple_gla import chunk_simple_gla
from fla_core.plugins import Implementation
from fla_core.reference.implementations import decay_chunk_backward, decay_chunk_forward
from plugins_in_process import implementation, installed

CASE = Case(
    "gla",
    "bwd",
    "bfloat16",
    "chunk",
    {"B": 2, "T": 33, "H": 2, "HV": 2, "K": 16, "V": 8},
    frozenset({"gk", "initial_state", "final_state"}),
)
FORWARD = CASE.but(direction="fwd")


def outcome_of(one: Implementation, case: Case = CASE) -> Result:
    with installed(one) as (target,):
        return run_case(case, target, "L2")


def forward(change: Callable[..., Any]) -> Implementation:
    """The reference's GLA, its outputs handed through a function first."""

    def spoilt(call: Any, save: bool) -> Any:
        outputs, residuals = decay_chunk_forward(call, save)
        return change(call, *outputs), residuals

    return implementation("gla", forward=spoilt)


def backward(change: Callable[..., Any]) -> Implementation:
    def spoilt(call: Any, residuals: Any, grads: Any, needs: Any) -> Any:
        return change(dict(decay_chunk_backward(call, residuals, grads, needs)))

    return implementation("gla", backward=spoilt)


@pytest.mark.parametrize("plugin", ["acme", "reference"])
def test_what_is_right_passes_with_a_margin(plugin: str) -> None:
    if plugin == "acme":
        result = outcome_of(implementation("gla"))
    else:
        by_name = {target.implementation: target for target in targets(plugin)}
        result = run_case(CASE, by_name["reference:gla#chunk"])
    assert (result.outcome, result.detail) == (Outcome.PASS, "")
    assert result.plan.endswith(":gla#chunk")
    assert result.margin is not None
    assert 0 < result.margin.block < 0.5
    assert (result.id, Case.from_json(result.case).id) == (CASE.id, CASE.id)
    assert result.seconds > 0


def test_the_lowered_route_is_named_in_the_plan() -> None:
    result = outcome_of(implementation("gla"), CASE.but(features=CASE.features | {"reverse"}))
    assert (result.outcome, result.plan) == (Outcome.PASS, "acme:gla#chunk (lowered: reverse)")


def test_wrong_outputs_and_gradients_are_numeric() -> None:
    result = outcome_of(forward(lambda call, o, s: (o * 1.1, s)), FORWARD)
    assert result.outcome is Outcome.FAIL_NUMERIC
    assert result.detail.startswith("o: ")
    result = outcome_of(backward(lambda grads: {**grads, "gk": -grads["gk"]}))
    assert result.outcome is Outcome.FAIL_NUMERIC
    assert result.detail.startswith("dgk: ")
    assert result.margin is not None
    assert result.margin.name == "dgk"


def _unwritten(call: Any, o: Any, state: Any) -> Any:
    made = torch.empty_like(o)
    made[:, :-1] = o[:, :-1]
    return made, state


def test_unwritten_memory_is_not_a_number() -> None:
    result = outcome_of(forward(_unwritten), FORWARD)
    assert result.outcome is Outcome.FAIL_NUMERIC
    assert "not finite, the first at [0, 32, 0, 0]" in result.detail


def test_shape_and_dtype_have_outcomes_of_their_own() -> None:
    result = outcome_of(forward(lambda call, o, s: (o[:, 1:].clone(), s)), FORWARD)
    assert result.outcome is Outcome.FAIL_SHAPE
    result = outcome_of(forward(lambda call, o, s: (o.float(), s)), FORWARD)
    assert result.outcome is Outcome.FAIL_DTYPE
    assert "expected  bfloat16[2, 33, 2, 8] on cpu" in result.detail


def _through_a_pointer(call: Any, o: Any, state: Any) -> Any:
    ctypes.memset(call.v.data_ptr(), 0x3F, 1)
    return o, state


def test_an_input_changed_behind_torch_is_found_by_its_bytes() -> None:
    result = outcome_of(forward(_through_a_pointer), FORWARD)
    assert (result.outcome, result.detail) == (Outcome.FAIL_LAW, "changed the bytes of v")


def _in_place(call: Any, o: Any, state: Any) -> Any:
    call.v.mul_(1)
    return o, state


def test_an_input_changed_through_torch_is_found_by_core() -> None:
    result = outcome_of(forward(_in_place), FORWARD)
    assert result.outcome is Outcome.FAIL_LAW
    assert "changed 'v' in place" in result.detail


def test_a_missing_gradient_breaks_the_rules() -> None:
    result = outcome_of(backward(lambda grads: {n: g for n, g in grads.items() if n != "k"}))
    assert result.outcome is Outcome.FAIL_LAW
    assert "no gradient of 'k'" in result.detail


def test_another_operator_does_not_compute_in_its_name() -> None:
    def elsewhere(call: Any, *outputs: Any) -> Any:
        return chunk_simple_gla(call.q, call.k, call.v, output_final_state=True)

    with installed(forward(elsewhere), implementation("simple_gla")) as (target, _):
        result = run_case(FORWARD, target)
    assert result.outcome is Outcome.NOT_EXECUTED
    assert "acme:simple_gla#chunk" in result.detail


def test_the_reference_does_not_compute_in_its_name() -> None:
    def elsewhere(call: Any, *outputs: Any) -> Any:
        return chunk_gla(call.q, call.k, call.v, call.gk, backend="reference")

    result = outcome_of(forward(elsewhere), FORWARD)
    assert result.outcome is Outcome.REFUSED_UNDECLARED
    assert "chunk_gla has no implementation for this call" in result.detail


def test_gradients_that_are_not_offered_are_not_asked_for() -> None:
    partial = implementation("gla", gradients=frozenset({"q", "v"}))
    assert outcome_of(partial).outcome is Outcome.REFUSED_DECLARED
    some = CASE.but(gradients=frozenset({"q", "v"}))
    found = outcome_of(partial, some)
    assert found.outcome is Outcome.PASS
    right: Any = partial.backward

    def negated(call: Any, residuals: Any, grads: Any, needs: Any) -> Any:
        given = right(call, residuals, grads, needs)
        assert set(given) == set(needs) == {"q", "v"}
        return {**given, "v": -given["v"]}

    wrong = outcome_of(replace(partial, backward=negated), some)
    assert wrong.outcome is Outcome.FAIL_NUMERIC
    assert wrong.detail.startswith("dv:")


def test_what_never_ran_is_missed() -> None:
    with installed(implementation("gla")) as (target,):
        inputs = make_inputs(CASE)
        with only(target.implementation) as witness:
            inputs.run()
        assert missing(witness.take(), ("forward", "backward")) == (
            "wanted one forward and one backward, what ran was forward of acme:gla#chunk"
        )
    assert missing((), ("forward",)) == "wanted one forward, what ran was nothing"


def test_an_exception_is_a_crash() -> None:
    def fail(call: Any, *outputs: Any) -> Any:
        raise RuntimeError("illegal memory access")

    result = outcome_of(forward(fail), FORWARD)
    assert result.outcome is Outcome.CRASH
    assert result.detail == "RuntimeError: illegal memory access"


def test_refusals_are_told_apart_by_what_was_declared() -> None:
    narrow = Domain(
        ("bfloat16",),
        {"K": AxisRange(choices=(64,))},
        features=dict.fromkeys(("gk", "initial_state", "final_state"), "optional"),
    )
    declared = outcome_of(implementation("gla", domain=narrow))
    assert declared.outcome is Outcome.REFUSED_DECLARED
    assert "K=16, wants 64" in declared.detail
    unforeseen = outcome_of(implementation("gla", verifier=lambda view: (False, "not on a Sunday")))
    assert unforeseen.outcome is Outcome.REFUSED_UNDECLARED
    assert "not on a Sunday" in unforeseen.detail
    forward_only = implementation("gla", backward=None)
    assert outcome_of(forward_only).outcome is Outcome.REFUSED_DECLARED
    assert outcome_of(forward_only, FORWARD).outcome is Outcome.PASS


def test_a_case_that_contradicts_itself_is_not_the_implementations_fault() -> None:
    with installed(implementation("gla")) as (target,), pytest.raises(ValueError, match="no feat"):
        run_case(CASE.but(features=frozenset({"beta"})), target)


def test_an_unknown_plugin_is_named() -> None:
    with pytest.raises(LookupError, match="there is no plugin 'nobody'; installed are reference"):
        targets("nobody")
