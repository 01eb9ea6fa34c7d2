"""Each law fails on a violation planted for it, and passes for the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.device import DeviceAdapter
from fla_conformance.laws import LAWS, Law, laws_for, run_law
from fla_conformance.laws.cases import cases_for
from fla_conformance.result import Outcome, Result
from fla_conformance.run import Target, targets
from fla_core.contracts import CONTRACTS
from fla_core.domain import AxisRange, Domain
from plugins_in_process import implementation, installed

Outputs = tuple[Tensor, ...]


def spoilt(
    contract: str = "simple_gla",
    before: Callable[[Any], Any] = lambda call: call,
    after: Callable[[Any, Outputs], Outputs] = lambda call, outputs: outputs,
    backward: Callable[..., Any] = lambda call, grads, needs, found: found,
    **changes: Any,
) -> Any:
    """The reference with its call, its outputs or its gradients changed on the way."""
    right = implementation(contract)
    right_forward: Any = right.forward
    right_backward: Any = right.backward

    def forward(call: Any, save: bool) -> Any:
        outputs, residuals = right_forward(before(call), save)
        return after(call, outputs), residuals

    def wrong_backward(call: Any, residuals: Any, grads: Any, needs: Any) -> Any:
        found = dict(right_backward(before(call), residuals, grads, needs))
        return backward(call, grads, needs, found)

    return replace(right, forward=forward, backward=wrong_backward, **changes)


def first(change: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Outputs], Outputs]:
    """Change the first output."""
    return lambda call, outputs: (change(call, outputs[0]), *outputs[1:])


def _reading_on(call: Any, o: Tensor) -> Tensor:
    v = call.v
    after = v.storage_offset() + v.numel()
    more = v.untyped_storage().nbytes() // v.element_size() > after
    return o + v.as_strided((1,), (1,), after) if more else o


def _writing_on(call: Any, o: Tensor) -> Tensor:
    v = call.v.data
    after = v.storage_offset() + v.numel()
    if v.untyped_storage().nbytes() // v.element_size() > after:
        v.as_strided((1,), (1,), after).fill_(7)
    return o


def _last_row_unwritten(call: Any, o: Tensor) -> Tensor:
    out = torch.empty_like(o)
    out[:, :-1] = o[:, :-1]
    return out


def _sees_the_last(call: Any, o: Tensor) -> Tensor:
    return torch.cat([o[:, :1] + call.v[:, -1:], o[:, 1:]], dim=1)


def _from_zero(call: Any) -> Any:
    state = call.initial_state
    return call if state is None else call.but(initial_state=torch.zeros_like(state))


def _one_sequence(call: Any, outputs: Outputs) -> Outputs:
    if call.seqlens is None:
        return outputs
    dense = replace(call.but(initial_state=call.initial_state[:1]), seqlens=None)
    right: Any = implementation("simple_gla").forward
    return (right(dense, False)[0][0], *outputs[1:])


def _no_gradient_of_last_state(call: Any, grads: Any, needs: Any, found: Any) -> Any:
    if call.seqlens is not None and "initial_state" in found:
        found["initial_state"][-1] = 0
    return found


def _strides_ignored(call: Any) -> Any:
    v = call.v
    dense = torch.empty(v.shape).stride()
    if v.stride() == dense or v.untyped_storage().nbytes() < v.numel() * v.element_size():
        return call
    return call.but(v=v.as_strided(v.shape, dense, 0))


def _offsets_in_32_bits(call: Any) -> Any:
    q = call.q
    return call.but(q=q[:1].expand_as(q)) if q.stride(0) >= 2**31 else call


def _counting() -> Callable[[Any, Tensor], Tensor]:
    runs = iter(range(1, 10**6))
    return lambda call, o: o * (1 + 2.0 ** -next(runs))


def _one_buffer() -> Callable[[Any, Tensor], Tensor]:
    buffers: dict[Any, Tensor] = {}

    def reuse(call: Any, o: Tensor) -> Tensor:
        return buffers.setdefault((o.shape, o.dtype), torch.empty_like(o)).copy_(o)

    return reuse


def _changes_k_later() -> Callable[[Any, Tensor], Tensor]:
    runs = iter(range(10**6))

    def change(call: Any, o: Tensor) -> Tensor:
        if next(runs):
            call.k.data.mul_(2)
        return o

    return change


def _by_batch(call: Any, o: Tensor) -> Tensor:
    return o * (1.1 if call.q.shape[0] > 1 else 1.0)


def _needs_matter(call: Any, grads: Any, needs: Any, found: Any) -> Any:
    return found if "v" in needs else {name: 2 * grad for name, grad in found.items()}


def _none_is_not_zero(call: Any, grads: Any, needs: Any, found: Any) -> Any:
    return {name: 2 * g for name, g in found.items()} if None in grads else found


def _changes_k(call: Any, o: Tensor) -> Tensor:
    call.k.data.mul_(2)
    return o


def _changes_gradient(call: Any, grads: Any, needs: Any, found: Any) -> Any:
    grads[0].data.mul_(2)
    return found


def _louder(call: Any, o: Tensor) -> Tensor:
    return o * 1.1


VIOLATIONS = {
    "reads on": ("poison", spoilt(after=first(_reading_on))),
    "writes on": ("poison", spoilt(after=first(_writing_on))),
    "row unwritten": ("nanfill", spoilt(after=first(_last_row_unwritten))),
    "not causal": ("prefix", spoilt(after=first(_sees_the_last))),
    "not causal in backward": (
        "prefix",
        spoilt(backward=lambda call, grads, needs, found: {n: g + 1 for n, g in found.items()}),
    ),
    "state ignored": ("split", spoilt(before=_from_zero)),
    "boundaries ignored": ("pack", spoilt(after=_one_sequence)),
    "boundaries ignored in backward": ("pack-grad", spoilt(backward=_no_gradient_of_last_state)),
    "strides ignored": ("stride", spoilt(before=_strides_ignored)),
    "32-bit offsets": ("oob-stride", spoilt(before=_offsets_in_32_bits)),
    "drifts": ("repeat", spoilt(after=first(_counting()))),
    "argument changed from the second call on": ("repeat", spoilt(after=first(_changes_k_later()))),
    "buffer reused": ("repeat", spoilt(after=first(_one_buffer()))),
    "depends on the batch": ("batchrep", spoilt(after=first(_by_batch))),
    "needs matter": ("gradmask", spoilt(backward=_needs_matter)),
    "None is not zero": ("gradmask", spoilt(backward=_none_is_not_zero)),
    "argument changed": ("immut", spoilt(after=first(_changes_k))),
    "gradient changed": ("immut", spoilt(backward=_changes_gradient)),
    **{
        f"{name} is another": ("reduce", spoilt(name, after=first(_louder)))
        for name, contract in CONTRACTS.items()
        if "reduce" in contract.laws
    },
}


def results(law: Law, target: Target, budget: int = 3) -> Iterator[Result]:
    contract = CONTRACTS[target.declaration.contract]
    for case in cases_for(law, contract, target.declaration, budget):
        yield run_law(law, case, target)


@pytest.mark.parametrize("violation", VIOLATIONS)
def test_planted_violation_is_found(violation: str) -> None:
    name, wrong = VIOLATIONS[violation]
    with installed(wrong) as (target,):
        found = list(results(LAWS[name], target))
    assert Outcome.FAIL_LAW in {result.outcome for result in found}
    assert all(result.detail for result in found if result.outcome is Outcome.FAIL_LAW)
    assert {result.outcome for result in found} <= {Outcome.FAIL_LAW, Outcome.PASS}


def test_every_law_has_a_planted_violation() -> None:
    assert {name for name, _ in VIOLATIONS.values()} == set(LAWS)


@pytest.mark.parametrize("name", LAWS)
def test_same_plugin_without_violation_passes(name: str) -> None:
    with installed(implementation("simple_gla")) as (target,):
        found = list(results(LAWS[name], target, 2))
    assert found
    assert {result.outcome for result in found} == {Outcome.PASS}
    assert {result.detail for result in found} == {""}
    assert all(result.plan.startswith("acme:simple_gla#chunk") for result in found)


CHUNKED = [f"reference:{name}#chunk" for name in CONTRACTS]


@pytest.mark.parametrize("identity", [*CHUNKED, "reference:gated_delta_rule#recurrent"])
def test_reference_obeys_every_law(identity: str) -> None:
    target = next(t for t in targets("reference") if t.implementation == identity)
    contract = CONTRACTS[target.declaration.contract]
    found = [result for law in laws_for(contract) for result in results(law, target, 1)]
    assert {result.outcome for result in found} == {Outcome.PASS}, [r.detail for r in found]
    expected = {law.name for law in laws_for(contract)}
    assert {result.law for result in found} == expected


def test_contracts_name_laws_that_exist() -> None:
    for contract in CONTRACTS.values():
        assert set(contract.laws) <= set(LAWS)


def test_cases_lie_in_the_declared_domain() -> None:
    narrow = Domain(
        dtypes=("float16",),
        axes={"K": AxisRange(choices=(64, 128)), "T": AxisRange(multiple_of=64, low=64)},
        features=dict.fromkeys(("g", "final_state", "initial_state"), "optional"),
    )
    with installed(implementation("simple_gla", domain=narrow)) as (target,):
        contract = CONTRACTS["simple_gla"]
        found = {law.name: cases_for(law, contract, target.declaration) for law in LAWS.values()}
        assert found["pack"] == []  # packed sequences are not declared
        for case in found["split"]:
            assert (case.dtype, case.sizes["K"], case.sizes["T"]) == ("float16", 64, 128)
        assert [run_law(LAWS["split"], case, target).outcome for case in found["split"]] == [
            Outcome.PASS
        ] * len(found["split"])


def test_forward_only_implementation_is_checked_for_its_outputs() -> None:
    with installed(implementation("simple_gla", backward=None)) as (target,):
        found = [result for law in LAWS.values() for result in results(law, target, 1)]
    assert {result.outcome for result in found} == {Outcome.PASS}
    assert {"pack-grad", "gradmask"}.isdisjoint(result.law for result in found)


def test_partial_gradients_are_checked_alone() -> None:
    offered = frozenset({"q", "v"})
    with installed(implementation("simple_gla", gradients=offered)) as (target,):
        found = [result for law in LAWS.values() for result in results(law, target, 1)]
    assert {result.outcome for result in found} == {Outcome.PASS}, [r.detail for r in found]
    assert {"pack-grad", "gradmask"} <= {result.law for result in found}
    wanted = {tuple(r.case["gradients"] or ()) for r in found if r.case["direction"] == "bwd"}
    assert wanted == {("q", "v")}


def _case(target: Target, law: str) -> Case:
    contract = CONTRACTS[target.declaration.contract]
    return cases_for(LAWS[law], contract, target.declaration)[0]


def test_crash_is_a_crash() -> None:
    def broken(call: Any, save: bool) -> Any:
        raise ZeroDivisionError("planted")

    with installed(implementation("simple_gla", forward=broken)) as (target,):
        result = run_law(LAWS["repeat"], _case(target, "repeat"), target)
    assert (result.outcome, result.detail) == (Outcome.CRASH, "ZeroDivisionError: planted")


def test_refusal_of_a_declared_call_is_undeclared() -> None:
    refusing = implementation("simple_gla", verifier=lambda view: (False, "not today"))
    with installed(refusing) as (target,):
        result = run_law(LAWS["repeat"], _case(target, "repeat"), target)
    assert result.outcome is Outcome.REFUSED_UNDECLARED
    assert "not today" in result.detail


class _Crammed(DeviceAdapter):
    def memory(self) -> int:
        return 2**20


def test_law_that_needs_more_memory_than_there_is_was_not_executed() -> None:
    with installed(implementation("simple_gla")) as (target,):
        crammed = replace(target, device=_Crammed("cpu"))
        result = run_law(LAWS["oob-stride"], _case(target, "oob-stride"), crammed)
    assert result.outcome is Outcome.NOT_EXECUTED
    assert "GiB" in result.detail
