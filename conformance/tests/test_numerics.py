"""Gold, its units, and whether what is wrong is seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fla_conformance.gold as gold_module
from fla_conformance.case import Case
from fla_conformance.grid import grid
from fla_conformance.inputs import make_inputs
from fla_conformance.numerics import Gold, gold, gold_of, judge
from fla_conformance.result import Outcome
from fla_conformance.risks import MANY
from fla_conformance.run import run_case, targets
from fla_core.contracts import CONTRACTS
from fla_core.reference.oracle import oracle
from plugins_in_process import implementation
from rounding import emulated

SIZES = {"B": 2, "T": 65, "H": 2, "HV": 2, "K": 16, "V": 8}
STATES = ("initial_state", "final_state")
BASE = {
    "linear_attn": STATES,
    "simple_gla": ("g", *STATES),
    "gla": ("gk", *STATES),
    "delta_rule": ("beta", *STATES),
    "gated_delta_rule": ("g", "beta", *STATES),
    "kda": STATES,
    "gdn2": STATES,
}


def case(contract: str = "kda", direction: str = "bwd", dtype: str = "bfloat16") -> Case:
    return Case(contract, direction, dtype, "chunk", SIZES, frozenset(BASE[contract]))  # type: ignore[arg-type]


def spoilt(right: Gold, name: str, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    return {**right.values, name: change(right.values[name].clone())}


@pytest.mark.parametrize("contract", sorted(CONTRACTS))
def test_gold_is_the_recurrence_and_its_gradient(contract: str) -> None:
    right, inputs = gold(case(contract)), make_inputs(case(contract))
    leaves = {name: t.double().requires_grad_() for name, t in inputs.present.items()}
    outputs = oracle(inputs.call_with({**inputs.tensors, **leaves}))
    for name, output in outputs.items():
        assert torch.allclose(right.values[name], output, rtol=0, atol=1e-12)
    gradients = torch.autograd.grad(
        list(outputs.values()),
        list(leaves.values()),
        [inputs.grads[name].double() for name in outputs],
    )
    for name, gradient in zip(leaves, gradients, strict=True):
        assert torch.allclose(right.values[f"d{name}"], gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("contract", sorted(CONTRACTS))
def test_float64_is_held_to_its_own_roundings(contract: str) -> None:
    right = gold(case(contract, dtype="float64"))
    for name in right.values:
        for fault in (1e-6, 1e-12):
            judged = judge(
                case(contract), spoilt(right, name, lambda x, f=fault: x * (1 + f)), right
            )
            assert not judged.passed, (name, fault)
        assert judge(case(contract), spoilt(right, name, lambda x: x * (1 + 2e-16)), right).passed


def test_gold_is_kept_and_the_same_again() -> None:
    first = gold(case())
    assert gold(case()) is first
    again = gold_of(make_inputs(case()), case().key)
    for name, value in first.values.items():
        assert torch.equal(value, again.values[name])
        assert torch.equal(first.units[name].row, again.units[name].row)


def test_the_unit_is_about_what_a_dtype_rounds() -> None:
    """Rounding gold itself to the dtype costs less than one unit, and more than a tenth of one."""
    for dtype in ("bfloat16", "float16"):
        right = gold(case(dtype=dtype))
        rounded = {n: x.to(getattr(torch, dtype)) for n, x in right.values.items()}
        judged = judge(case(), rounded, right)
        worst = max(4 * margin.block for margin in judged.margins.values())
        assert judged.passed
        assert 0.1 < worst < 1


def test_float32_knows_what_its_sums_cost() -> None:
    """An error of one rounding for each of sqrt(n) terms is about a unit where inputs are exact."""
    right = gold(case("linear_attn", "fwd", "float32"))
    unit = right.units["o"].block / right.values["o"].square().mean((1, 3)).sqrt()
    assert (unit > 2 * 2**-24).all()
    assert (unit < 40 * 2**-24).all()


def test_tensor_float32_is_another_dtype() -> None:
    exact = gold(case("gla", "fwd", "float32"))
    torch.set_float32_matmul_precision("high")
    try:
        loose = gold(case("gla", "fwd", "float32"))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert (loose.units["o"].block > 100 * exact.units["o"].block).all()
    assert gold(case("gla", "fwd", "float32")) is exact


@pytest.mark.parametrize("contract", sorted(CONTRACTS))
@pytest.mark.parametrize(
    ("dtype", "factor"), [("bfloat16", 8e-3), ("float16", 1e-3), ("float32", 2e-6)]
)
def test_two_roundings_everywhere_are_seen_in_every_output_and_gradient(
    contract: str, dtype: str, factor: float
) -> None:
    right = gold(case(contract, dtype=dtype))
    for name in right.values:
        for sign in (1, -1):
            wrong = spoilt(right, name, lambda x, by=1 + sign * factor: x * by)
            judged = judge(case(contract), wrong, right)
            assert judged.failure.startswith(f"{name}: "), name
            assert judged.margin is not None
            assert judged.margin.name == name
            assert judged.margin.gain > 1
            assert judged.margin.worst >= judged.margin.gain
            assert judged.margin.ratio == pytest.approx(factor, rel=1e-3)


def test_a_factor_rounded_to_the_dtype_is_no_fault() -> None:
    """The scale, say; truncated results, which are half a unit in the last place too small."""
    for dtype in ("bfloat16", "float16"):
        right = gold(case("gla", "fwd", dtype))
        half = torch.finfo(getattr(torch, dtype)).eps / 2
        assert judge(case("gla"), spoilt(right, "o", lambda x, u=half: x * (1 - u)), right).passed


def _one_direction(dtype: str, seed: int = 0, blocks: int = 1, values: int = 16) -> Case:
    """Keys so alike that all of a final state's error lies along one of them."""
    sizes = {"B": blocks, "T": 129, "H": blocks, "HV": blocks, "K": 16, "V": values}
    found = case("gated_delta_rule", "fwd", dtype)
    return found.but(sizes=sizes, regime="parallel_keys", seed=seed)


@pytest.mark.parametrize(("dtype", "values", "seed"), [("bfloat16", 16, 24), ("float16", 8, 2)])
def test_errors_along_one_direction_are_no_factor(dtype: str, values: int, seed: int) -> None:
    """Counted element by element, what rounded factors leave here would be 1.1 and 1.2 limits."""
    found = _one_direction(dtype, seed, values=values)
    answer = emulated(make_inputs(found))
    judged = judge(found, answer, gold(found))
    assert judged.passed, judged.failure
    assert judged.margins["final_state"].gain > 0.5


@pytest.mark.parametrize(
    ("dtype", "of_o", "of_state"),
    [("bfloat16", 8e-3, 1.6e-2), ("float16", 1e-3, 2e-3), ("float32", 2e-6, 5e-6)],
)
def test_a_factor_where_errors_lie_along_one_direction_is_seen(
    dtype: str, of_o: float, of_state: float
) -> None:
    found = _one_direction(dtype, blocks=2)
    right = gold(found)
    for name, factor in (("o", of_o), ("final_state", of_state)):
        wrong = spoilt(right, name, lambda x, by=factor: x * (1 + by))
        assert judge(found, wrong, right).margins[name].gain > 1, name


def test_a_state_of_one_key_channel_is_a_row() -> None:
    """What T tokens leave in it is forgotten at once; the terms a chunk adds up are not."""
    sizes = {"B": 1, "T": 16, "H": 1, "HV": 1, "K": 1, "V": 16}
    for seed in range(8):
        found = case("delta_rule", "bwd", "float16").but(sizes=sizes, seed=seed)
        judged = judge(found, emulated(make_inputs(found)), gold(found))
        assert judged.passed, judged.failure
        for name in ("final_state", "dinitial_state"):
            right = gold(found)
            margin = judge(found, spoilt(right, name, lambda x: x * 1.05), right).margins[name]
            assert margin.worst > 1, (seed, name)


def test_gates_in_fewer_bits_than_q_are_no_excuse() -> None:
    """A gate in bfloat16 is exact in float32: sums of it may be no worse than of one in float32."""
    for contract in ("simple_gla", "kda"):
        usual = case(contract, "fwd", "float32")
        narrow = usual.but(gate_dtype="bfloat16")
        right = gold(narrow)
        assert not judge(narrow, spoilt(right, "o", lambda x: x * (1 + 1e-4)), right).passed
        ratio = right.units["o"].block / gold(usual).units["o"].block
        assert (ratio < 3).all()


def _zero_one_row(x: Tensor) -> Tensor:
    x[1, 40, 1] = 0
    return x


def _drop_tail(x: Tensor) -> Tensor:
    x[:, 64:] = 0
    return x


FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "one row zero": _zero_one_row,
    "tail dropped": _drop_tail,
    "heads swapped": lambda x: x.flip(2),
    "a token late": lambda x: x.roll(1, 1),
    "all zero": torch.zeros_like,
    "one not a number": lambda x: x.index_fill(1, torch.tensor([64]), float("nan")),
    "infinite": lambda x: x / 0,
    "transposed batch": lambda x: x.flip(0),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("contract", sorted(CONTRACTS))
def test_structural_faults_are_seen_in_bfloat16(contract: str, fault: str) -> None:
    right = gold(case(contract))
    for name in ("o", "dq", "dk", "dv"):
        judged = judge(case(contract), spoilt(right, name, FAULTS[fault]), right)
        assert judged.failure.startswith(f"{name}: "), name


def test_what_cannot_be_compared_fails_and_says_why() -> None:
    right = gold(case())
    without = {name: x for name, x in right.values.items() if name != "dk"}
    assert judge(case(), without, right).failure == "dk: missing"
    shorter = spoilt(right, "o", lambda x: x[:, 1:])
    assert "o: shape [2, 64, 2, 8], expected [2, 65, 2, 8]" in judge(case(), shorter, right).failure
    broken = spoilt(right, "o", FAULTS["one not a number"])
    assert "o: 32 of 2080 not finite, the first at [0, 64, 0, 0]" in (
        judge(case(), broken, right).failure
    )


def test_where_gold_is_not_finite_nothing_is_asked() -> None:
    inputs = make_inputs(case("gla"))
    inputs.present["v"][0, 60, 0, 0] = float("inf")
    right = gold_of(inputs)
    assert not right.values["o"][0, 60, 0, 0].isfinite()
    answer = {name: x.nan_to_num(7.0) for name, x in right.values.items()}
    assert judge(case("gla"), answer, right).passed
    assert not judge(case("gla"), {**answer, "o": answer["o"] * 1.02}, right).passed


def test_gold_has_gradients_whatever_the_mode() -> None:
    with torch.no_grad():
        assert "dq" in gold_of(make_inputs(case())).values


def test_below_the_smallest_number_nothing_relative_is_asked() -> None:
    right = gold(case("gla", "fwd"))
    tiny = Gold({"o": right.values["o"] * 0}, {"o": _unit_of_zero()}, {"o": right.layouts["o"]})
    assert judge(case("gla", "fwd"), {"o": right.values["o"] * 0 + 1e-40}, tiny).passed
    assert not judge(case("gla", "fwd"), {"o": right.values["o"] * 0 + 1e-30}, tiny).passed


def test_what_is_left_behind_a_reset_may_be_flushed_to_zero_in_float16() -> None:
    """A factor of float16 with a decay of exp(-35) is zero, and so is what comes of it."""
    found = case("gated_delta_rule", "bwd", "float16").but(regime="resets")
    for dtype, passes in (("float16", True), ("bfloat16", False)):
        inputs = make_inputs(found.but(dtype=dtype))
        inputs.present["g"][:, 0] = -35.0
        right = gold_of(inputs)
        assert 0 < right.values["dinitial_state"].abs().max() < 1e-12
        answer = spoilt(right, "dinitial_state", torch.zeros_like)
        assert judge(found, answer, right).passed == passes


def _unit_of_zero() -> gold_module.Unit:
    zero = torch.zeros(2, 65, 2, 8, dtype=torch.float64)
    layout = gold(case("gla", "fwd")).layouts["o"]
    budget = CONTRACTS["gla"].numerics
    least = gold_module.smallest(torch.bfloat16)
    return gold_module._unit(zero, zero[None], layout, torch.bfloat16, budget, 2.0**-9, least)


@pytest.mark.parametrize("contract", sorted(CONTRACTS))
def test_long_calls_are_judged_by_the_same_function(
    contract: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunked float64 gold of long calls, certified on every feature set of the grid."""
    one = implementation(contract)
    sets = {}
    for level in ("L1", "L2"):
        for found in grid(CONTRACTS[contract], one, level, "full"):
            small = found.sizes["K"] == 16 and found.sizes["T"] in (65, 129)
            if small and found.dtype == "bfloat16" and not found.features & {"gv", "beta_v"}:
                sets.setdefault((level, found.features, found.regime), found)
    monkeypatch.setattr(gold_module, "PERTURBATIONS", 1)
    for found in sets.values():
        monkeypatch.setattr(gold_module, "TOKEN_BY_TOKEN", 1024)
        slow = gold_of(make_inputs(found))
        monkeypatch.setattr(gold_module, "TOKEN_BY_TOKEN", 0)
        fast = gold_of(make_inputs(found))
        for name, value in slow.values.items():
            size = value.abs().max().clamp_min(1e-30) if value.numel() else 1.0
            assert ((value - fast.values[name]) / size).abs().max() < 1e-10, (found.id, name)


def test_gates_beside_float64_may_be_computed_in_float32() -> None:
    """Logits in 16 bits are widened to float32, which is no fault of what goes on in float64."""
    features = frozenset({"beta_sigmoid", *STATES})
    call = case("kda", "bwd", "float64").but(features=features, gate_dtype="bfloat16")
    target = next(t for t in targets("reference") if t.implementation == "reference:kda#chunk")
    result = run_case(call, target, "L2")
    assert result.outcome is Outcome.PASS, result.detail


def test_a_token_alone_is_not_held_to_more_than_a_row_is() -> None:
    """Of 136 sequences, gradients of one would be 1.2 and 1.3 times as far off as a block may."""
    sizes = {"B": 1, "T": sum(MANY), "H": 1, "HV": 1, "K": 16, "V": 8}
    usual = case("gated_delta_rule")
    packed = usual.but(sizes=sizes, lengths=MANY, features=usual.features | {"varlen"}, seed=2)
    right = gold(packed)
    judged = judge(packed, emulated(make_inputs(packed)), right)
    assert judged.passed, judged.failure
    for name in ("dg", "dbeta"):
        wrong = spoilt(right, name, lambda x: x * 1.02)
        assert judge(packed, wrong, right).margins[name].gain > 2, name
