"""Inputs are the same everywhere, rounded, and refuse cases that contradict themselves."""

from __future__ import annotations

import json

import pytest
import torch

from fla_conformance.case import Case
from fla_conformance.inputs import make_inputs, operator_of
from fla_conformance.sense import SAFE_REGIMES, features_of
from fla_core import lowerings
from fla_core.reference.oracle import oracle

SIZES = {"B": 2, "T": 33, "H": 2, "HV": 4, "K": 16, "V": 8}


def case(contract: str = "kda", *features: str, **changes: object) -> Case:
    sizes = dict(SIZES) if contract in ("kda", "gated_delta_rule") else {**SIZES, "HV": 2}
    made = Case(contract, "bwd", "bfloat16", "chunk", sizes, frozenset(features))
    return made.but(**changes)


def test_the_same_case_gives_the_same_bytes() -> None:
    first, second = make_inputs(case()), make_inputs(case())
    for name, tensor in first.present.items():
        assert torch.equal(tensor, second.present[name])
    assert torch.equal(first.grads["o"], second.grads["o"])


def test_seeds_and_names_give_different_numbers() -> None:
    first, second = make_inputs(case()), make_inputs(case(seed=1))
    assert not torch.equal(first.present["q"], second.present["q"])
    assert not torch.equal(first.present["q"], first.present["k"])


def test_dtypes_are_those_of_the_contract() -> None:
    made = make_inputs(case("gated_delta_rule", "g", "beta", "initial_state", "final_state"))
    assert {name: tensor.dtype for name, tensor in made.present.items()} == {
        **dict.fromkeys(("q", "k", "v"), torch.bfloat16),
        **dict.fromkeys(("g", "beta", "initial_state"), torch.float32),
    }
    assert made.grads["o"].dtype == torch.bfloat16
    assert made.grads["final_state"].dtype == torch.float32


@pytest.mark.parametrize(
    ("dtype", "state"),
    [("bfloat16", "bfloat16"), ("float16", "float16"), ("float32", "bfloat16")],
)
def test_a_narrow_state_is_narrow(dtype: str, state: str) -> None:
    made = make_inputs(case("kda", "initial_state", "narrow_state", dtype=dtype))
    assert made.present["initial_state"].dtype == getattr(torch, state)


def test_alternative_shapes_and_state_layouts() -> None:
    made = make_inputs(case("kda", "beta_v", "initial_state", "state_v_first", "final_state"))
    assert made.present["beta"].shape == (2, 33, 4, 8)
    assert made.present["initial_state"].shape == (2, 4, 8, 16)
    assert made.grads["final_state"].shape == (2, 4, 8, 16)


def test_features_follow_from_lengths_and_sizes() -> None:
    packed = case(sizes={**SIZES, "B": 1}, lengths=(20, 0, 13))
    assert features_of(packed) == {"varlen", "gva"}
    made = make_inputs(packed)
    assert made.cu_seqlens is not None
    assert made.cu_seqlens.tolist() == [0, 20, 20, 33]
    assert made.call().num_sequences == 3


@pytest.mark.parametrize("regime", ["plain", "long_memory", "fast_decay", "resets"])
@pytest.mark.parametrize(
    "features", [(), ("gate", "A_log", "dt_bias"), ("gate", "A_log", "lower_bound")]
)
def test_regimes_are_what_they_say(regime: str, features: tuple[str, ...]) -> None:
    options = {"lower_bound": -5.0} if "lower_bound" in features else None
    made = make_inputs(case("kda", *features, regime=regime, options=options))
    call = made.call(torch.float64)
    if features:
        call = lowerings.gate(call)
    decay = call.g.exp()
    assert (call.g <= 0).all()
    assert {
        "plain": 0.3 < decay.mean() < 0.99,
        "long_memory": decay.min() > 0.99,
        "fast_decay": decay.mean() < 0.35,
        "resets": decay.min() < 0.05 and (decay > 0.99).any(),
    }[regime]


def test_parallel_keys_are_nearly_equal_unit_keys() -> None:
    made = make_inputs(case(regime="parallel_keys"))
    keys = made.present["k"].double()
    cosine = (keys[:, 1:] * keys[:, :-1]).sum(-1)
    assert cosine.min() > 0.97
    assert made.present["beta"].min() > 1.7


def test_keys_of_the_delta_family_have_unit_length() -> None:
    norms = make_inputs(case()).present["k"].double().norm(dim=-1)
    assert torch.allclose(norms, torch.ones_like(norms), atol=0.01)


def test_a_run_returns_what_the_oracle_does() -> None:
    made = make_inputs(case("kda", "initial_state", "final_state", "l2norm", dtype="float64"))
    right = oracle(made.call())
    got = made.run(backend="reference")
    assert got.keys() == right.keys()
    for name, value in got.items():
        assert torch.allclose(value, right[name], atol=1e-10)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gates_and_strengths_may_have_16_bits(dtype: str) -> None:
    made = make_inputs(case("gated_delta_rule", "g", "beta", "initial_state", gate_dtype=dtype))
    assert made.present["g"].dtype == made.present["beta"].dtype == getattr(torch, dtype)
    assert made.present["initial_state"].dtype == torch.float32
    assert made.present["g"].max() <= 0


@pytest.mark.parametrize("regime", SAFE_REGIMES)
@pytest.mark.parametrize("features", [(), ("gate", "A_log", "dt_bias", "lower_bound")])
def test_a_safe_gate_keeps_its_promise(regime: str, features: tuple[str, ...]) -> None:
    options = {"lower_bound": -5.0} if features else None
    made = make_inputs(case("kda", *features, regime=regime, safe_gate=True, options=options))
    decay = lowerings.gate(made.call()).g if features else made.call().g
    assert made.hints.safe_gate
    assert decay.min() >= -5
    assert decay.max() < 0


def test_hints_and_gradients_travel() -> None:
    changes = {"recompute": False, "safe_gate": True, "chunk_size": 32, "gate_dtype": "float16"}
    odd = case(**changes, gradients=frozenset({"q", "g"}))
    assert "/C32/keep/safe/gates-fp16/grad-g-q/plain/" in odd.id
    again = Case.from_json(json.loads(json.dumps(odd.to_json())))
    assert again == odd
    made = make_inputs(again)
    assert (made.hints.chunk_size, made.hints.recompute, made.hints.safe_gate) == (32, False, True)
    assert made.wanted == ("q", "g")
    assert {name for name, leaf in made.leaves.items() if leaf.requires_grad} == {"q", "g"}


def test_leaves_are_fresh() -> None:
    made = make_inputs(case())
    assert all(leaf.requires_grad and leaf.is_leaf for leaf in made.leaves.values())
    assert not any(tensor.requires_grad for tensor in made.present.values())


def test_scale_and_lower_bound_are_options() -> None:
    made = make_inputs(case("kda", "gate", "lower_bound", options={"lower_bound": -5, "scale": 2}))
    assert (made.scale, made.options) == (2, (-5,))
    assert make_inputs(case()).call().scale == 0.25


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (case("gla", "beta"), "gla has no feature 'beta'"),
        (case("gla", options={"lower_bound": -5}), "gla has no option 'lower_bound'"),
        (case(regime="odd"), "regime must be plain"),
        (case("kda", "neg_eigval"), "'neg_eigval' needs 'beta_sigmoid'"),
        (case("kda", "A_log"), "'A_log' needs 'gate'"),
        (case("kda", "gate"), "'gate' needs 'A_log'"),
        (case("kda", "gate", "lower_bound"), "go together"),
        (case("kda", "states"), "inference only"),
        (case("kda", "varlen"), "follows from lengths"),
        (case(lengths=(1, 2)), "B must be 1"),
        (case("gated_delta_rule", "g"), "needs 'beta'"),
        (case(safe_gate=True, regime="resets"), "a safe gate needs regime plain"),
        (case("kda", "gate", "A_log", safe_gate=True), "and lower_bound where there is 'gate'"),
        (case(gradients=frozenset({"A_log"})), "no argument 'A_log' to have a gradient"),
        (case(gradients=frozenset()), "at least one"),
        (case(direction="fwd", gradients=frozenset({"q"})), "a backward case wants"),
        (case("gla", form="parallel"), "form must be chunk | recurrent"),
    ],
)
def test_contradictions_are_named(broken: Case, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("|", r"\|")) as caught:
        operator_of(broken) if "form must" in message else make_inputs(broken)
    assert str(caught.value).startswith(broken.id)
