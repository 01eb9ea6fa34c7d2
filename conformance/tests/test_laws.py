"""Each law fails on a violation planted for it, and passes for the reference."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.device import DeviceAdapter
from fla_conformance.faults import FAULTS
from fla_conformance.laws import LAWS, Law, laws_for, run_law
from fla_conformance.laws.cases import cases_for
from fla_conformance.result import Outcome, Result
from fla_conformance.run import Target, targets
from fla_core.contracts import CONTRACTS
from fla_core.domain import AxisRange, Domain
from fla_core.seqlens import SeqLens
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


def _draws(call: Any, o: Tensor) -> Tensor:
    torch.rand(1)
    return o


def _seeds(call: Any, o: Tensor) -> Tensor:
    torch.manual_seed(0)
    return o


def _sets(call: Any, o: Tensor) -> Tensor:
    torch.use_deterministic_algorithms(True, warn_only=True)
    return o


def _puts_back() -> Any:
    """k is halved, used so, and put back."""
    right: Any = implementation("simple_gla").forward

    def forward(call: Any, save: bool) -> Any:
        old = call.k.data.clone()
        call.k.data.mul_(0.5)
        try:
            return right(call.but(k=2 * call.k.data), save)
        finally:
            call.k.data.copy_(old)

    return implementation("simple_gla", forward=forward, strided=False)


def _of_the_latest() -> Any:
    """Backward finds its arguments where the latest forward of that shape left them."""
    kept: dict[Any, Any] = {}

    def leave(call: Any, outputs: Outputs) -> Outputs:
        kept[tuple(call.q.shape), call.q.dtype, call.bounds] = call
        return outputs

    right: Any = implementation("simple_gla").backward

    def backward(call: Any, residuals: Any, grads: Any, needs: Any) -> Any:
        latest = kept[tuple(call.q.shape), call.q.dtype, call.bounds]
        return right(latest, residuals, grads, needs)

    return replace(spoilt(after=leave), backward=backward)


def _of_one_thread() -> Callable[..., Any]:
    mine = threading.get_ident()
    return lambda call, grads, needs, found: (
        found if threading.get_ident() == mine else {n: 0 * g for n, g in found.items()}
    )


def _by_address() -> Callable[[Any, Tensor], Tensor]:
    kept: dict[Any, tuple[Any, Tensor]] = {}

    def remember(call: Any, o: Tensor) -> Tensor:
        key = (call.q.data_ptr(), o.shape, o.dtype)
        return kept.setdefault(key, (call, o))[1].clone()  # the call keeps the address in use

    return remember


def _bounds_by_address() -> Callable[[Any], Any]:
    kept: dict[int, tuple[Any, Any]] = {}

    def remember(call: Any) -> Any:
        if call.seqlens is None:
            return call
        found = SeqLens(call.seqlens.device, call.bounds)
        key = call.seqlens.device.data_ptr()
        return replace(call, seqlens=kept.setdefault(key, (call, found))[1])

    return remember


def _forgets(call: Any, o: Tensor) -> Tensor:
    return o if call.q.shape[1] <= 512 else torch.cat([o[:, :512], o[:, 512:] * 0.9], dim=1)


def _with_pool(fault: str) -> Any:
    return replace(implementation("kda"), pooled=FAULTS[fault].pooled)


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
    "long calls otherwise": ("split", spoilt(after=first(_forgets))),
    "slot beside written": ("slots", _with_pool("slot-spilled")),
    "skipped rows unwritten": ("slots", _with_pool("skipped-left")),
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
    "torch set": ("immut", spoilt(after=first(_sets))),
    "random numbers drawn": ("immut", spoilt(after=first(_draws))),
    "generator seeded": ("immut", spoilt(after=first(_seeds))),
    "argument changed for a while": ("stride", _puts_back()),
    "backward of the latest forward": ("between", _of_the_latest()),
    "backward of one thread": ("between", spoilt(backward=_of_one_thread())),
    "known by address": ("refill", spoilt(after=first(_by_address()))),
    "boundaries known by address": ("refill", spoilt(before=_bounds_by_address())),
    "gradient changed": ("immut", spoilt(backward=_changes_gradient)),
    **{
        f"{name} is another": ("reduce", spoilt(name, after=first(_louder)))
        for name, contract in CONTRACTS.items()
        if "reduce" in contract.laws
    },
}


def results(law: Law, target: Target, budget: int = 6) -> Iterator[Result]:
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


def test_states_after_each_packed_token_are_looked_at() -> None:
    with installed(_with_pool("slot-last-in-each")) as (target,):
        cases = cases_for(LAWS["slots"], CONTRACTS["kda"], target.declaration, 12)
        packed = next(case for case in cases if case.lengths is not None)
        found = run_law(LAWS["slots"], packed, target)
    assert found.outcome is Outcome.FAIL_LAW
    assert "in sequence 0, after 1 tokens" in found.detail


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


def test_few_cases_meet_every_dtype_before_they_meet_anything_else() -> None:
    contract, one = CONTRACTS["simple_gla"], implementation("simple_gla")
    for law in (LAWS["stride"], LAWS["repeat"]):
        few, more = (cases_for(law, contract, one, budget) for budget in (3, 6))
        assert [case.dtype for case in few] == ["bfloat16", "float16", "float32"]
        assert more[:3] == few
        assert more[4].lengths is not None
        assert len(cases_for(law, contract, one)) <= 7
        assert len(cases_for(law, contract, one, "full")) >= 12


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
            assert (case.dtype, case.sizes["K"]) == ("float16", 64)
        assert {case.sizes["T"] for case in found["split"]} == {128, 640}
        assert [run_law(LAWS["split"], case, target).outcome for case in found["split"]] == [
            Outcome.PASS
        ] * len(found["split"])


def test_forward_only_implementation_is_checked_for_its_outputs() -> None:
    with installed(implementation("simple_gla", backward=None)) as (target,):
        found = [result for law in LAWS.values() for result in results(law, target, 1)]
    assert {result.outcome for result in found} == {Outcome.PASS}
    assert {"pack-grad", "gradmask", "between"}.isdisjoint(result.law for result in found)


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
