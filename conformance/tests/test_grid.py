"""The grid: the same every time, inside the declared domain, and about everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fla_conformance.case import REGIMES, Case
from fla_conformance.fitting import nearest
from fla_conformance.grid import grid, promoted
from fla_conformance.inputs import make_inputs
from fla_conformance.risks import DELTA
from fla_conformance.sense import contradiction
from fla_core.contracts import CONTRACTS
from fla_core.domain import FLOATS, AxisRange, Domain, Relation
from plugins_in_process import implementation

NAMES = sorted(CONTRACTS)
BOTH = ("L1", "L2")


def cases(
    name: str, budget: str | int = "full", variant: str = "chunk", **changes: Any
) -> list[Case]:
    one = implementation(name, variant, **changes)
    return [case for level in BOTH for case in grid(CONTRACTS[name], one, level, budget)]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_same_again_and_names_nothing_twice(name: str) -> None:
    ids = [case.id for case in cases(name)]
    assert ids == [case.id for case in cases(name)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", NAMES)
def test_every_case_can_be_made(name: str) -> None:
    for case in cases(name) + cases(name, variant="recurrent"):
        assert contradiction(case) == "", case.id


@pytest.mark.parametrize("name", NAMES)
def test_ci_is_a_part_that_has_every_feature_dtype_and_regime(name: str) -> None:
    both = {
        case.id: case for variant in ("chunk", "recurrent") for case in cases(name, "ci", variant)
    }
    everything = {case.id for v in ("chunk", "recurrent") for case in cases(name, "full", v)}
    assert both.keys() < everything
    features = frozenset().union(*(case.features for case in both.values()))
    assert features == frozenset(CONTRACTS[name].features)
    assert {case.dtype for case in both.values()} == set(FLOATS)
    gated = name not in ("linear_attn", "delta_rule")
    delta = name in DELTA
    wanted = set(REGIMES) - {"loud" if delta else "parallel_keys"}
    wanted -= set() if gated else {"long_memory", "fast_decay", "resets"}
    assert {case.regime for case in both.values()} == wanted
    assert any(0 in (case.lengths or ()) for case in both.values())
    assert {case.form for case in both.values()} == {form for _, form in CONTRACTS[name].public}


@pytest.mark.parametrize("name", NAMES)
def test_full_has_the_sizes_at_which_kernels_break(name: str) -> None:
    found = cases(name)
    lengths = {case.sizes["T"] for case in found if case.lengths is None}
    assert lengths >= {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 1500, 4100}
    heads = {size for case in found for size in (case.sizes["K"], case.sizes["V"])}
    assert heads >= {1, 3, 8, 17, 60, 64, 72, 96, 100, 128, 192, 256}
    if "gva" in CONTRACTS[name].features:
        assert {case.sizes["HV"] // case.sizes["H"] for case in found} == {1, 2, 3, 4}


@pytest.mark.parametrize("name", NAMES)
def test_few_key_channels_meet_one_token_where_keys_are_of_unit_length(name: str) -> None:
    found = {(case.sizes["T"], case.sizes["K"]) for case in cases(name) if case.lengths is None}
    few, many = {(1, 1), (1, 3), (15, 11), (33, 9)}, {(15, 3), (33, 1)}
    assert (few if name in DELTA else many) <= found
    assert not found & (many if name in DELTA else few)


@pytest.mark.parametrize("name", NAMES)
def test_ci_has_what_goes_wrong_in_one_dtype_or_beyond_a_chunk(name: str) -> None:
    for level in BOTH:
        found = grid(CONTRACTS[name], implementation(name), level, "ci")
        for dtype in ("bfloat16", "float16", "float32"):
            assert any(case.sizes["K"] % 2 for case in found if case.dtype == dtype)
            assert any(case.sizes["K"] == 128 for case in found if case.dtype == dtype)
        widths = {(case.sizes["K"], case.sizes["V"]) for case in found if case.dtype == "bfloat16"}
        assert {(17, 60), (64, 64), (128, 128), (8, 192), (256, 8)} <= widths
        assert max(case.sizes["T"] for case in found) == 4100
        assert max(len(case.lengths or ()) for case in found) > 128
        assert max(case.sizes["H"] for case in found) > 32
        assert max(case.sizes["B"] * case.sizes["H"] for case in found) > 128
        if "gva" in CONTRACTS[name].features:
            assert any(case.sizes["HV"] == 3 * case.sizes["H"] for case in found)
        packed = [case for case in found if case.lengths is not None]
        assert any("scale" in (case.options or {}) for case in packed)
        assert any(not case.recompute for case in packed)


def test_many_sequences_do_not_make_a_long_name() -> None:
    found = [case for case in cases("gla", "ci") if len(case.lengths or ()) > 32]
    assert found
    assert all(".N3-0-1-7-2-5-0-4-1-6-2-9-0-3-8-1-2x8/" in case.id for case in found)


def test_states_are_asked_for_without_gradients() -> None:
    found = [case for case in cases("kda") if "states" in case.features]
    assert {case.direction for case in found} == {"fwd"}


def test_a_number_takes_the_most_telling_first() -> None:
    one = implementation("gla")
    first = grid(CONTRACTS["gla"], one, "L1", 5)
    assert len(first) == 5
    assert {case.id for case in first} <= {c.id for c in grid(CONTRACTS["gla"], one, "L1", "ci")}


def narrow(**changes: Any) -> Domain:
    features = dict.fromkeys(("gk", "varlen", "initial_state", "final_state"), "optional")
    return Domain(**{"dtypes": ("float16",), "features": features, **changes})


@pytest.mark.parametrize(
    "domain",
    [
        narrow(axes={"K": AxisRange(choices=(64, 128)), "V": AxisRange(multiple_of=16, high=256)}),
        narrow(axes={"T": AxisRange(multiple_of=64), "K": AxisRange(16, 16)}),
        narrow(relations=(Relation("equal", ("K", "V")),)),
        narrow(relations=(Relation("product_at_most", ("K", "V"), 256),)),
        narrow(axes={"H": AxisRange(8)}, features={"gk": "required", "final_state": "required"}),
    ],
)
def test_a_narrow_domain_still_gets_cases_all_inside(domain: Domain) -> None:
    found = cases("gla", domain=domain)
    assert len(found) > 10
    for case in found:
        assert case.dtype == "float16"
        assert all(case.sizes[axis] in allowed for axis, allowed in domain.axes.items())
        assert all(relation.holds(case.sizes) for relation in domain.relations)
        assert domain.presence("final_state") == "optional" or "final_state" in case.features
        make_inputs(case)


def test_what_cannot_be_lowered_stays_out() -> None:
    domain = Domain(features=dict.fromkeys(("gk", "varlen"), "optional"))
    assert all("gv" not in case.features for case in cases("gla", domain=domain))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("budget", [1, "ci"])
def test_an_implementation_of_one_dtype_gets_cases_of_it(dtype: str, budget: Any) -> None:
    domain = Domain(dtypes=(dtype,), features=dict.fromkeys(("gk", "final_state"), "optional"))
    found = cases("gla", budget, domain=domain)
    assert {(case.dtype, case.direction) for case in found} == {(dtype, "fwd"), (dtype, "bwd")}


@pytest.mark.parametrize("name", NAMES)
def test_few_cases_still_meet_every_dtype(name: str) -> None:
    one = implementation(name)
    for level in BOTH:
        assert {case.dtype for case in grid(CONTRACTS[name], one, level, 4)} == set(FLOATS)


def test_gates_in_16_bits_and_hints_are_met() -> None:
    found = cases("kda", "ci")
    for direction in ("fwd", "bwd"):
        some = [case for case in found if case.direction == direction]
        assert {"float32", "bfloat16"} <= {case.gate_dtype for case in some}
        assert any(case.safe_gate for case in some)
        assert any(not case.recompute for case in some)
    full = {(case.dtype, case.gate_dtype) for case in cases("kda")}
    assert {("bfloat16", "float16"), ("float32", "bfloat16")} <= full
    assert {case.gate_dtype for case in cases("linear_attn")} == {"float32"}


def test_partial_gradients_are_asked_for_and_no_others() -> None:
    found = [case for case in cases("gla", gradients=frozenset({"q", "gk"})) if case.gradients]
    assert {case.gradients for case in found} == {frozenset({"q"}), frozenset({"q", "gk"})}
    assert all(case.direction == "bwd" for case in found)
    ids = [case.id for case in found]
    assert "grad-gk-q" in ids[0]
    assert len(found) == len([case for case in cases("gla") if case.direction == "bwd"])
    assert not grid(CONTRACTS["gla"], implementation("gla", gradients=frozenset({"A_log"})), "L2")


def test_what_vanishes_for_a_reason_of_structure_has_no_backward_case() -> None:
    single = {"K": AxisRange(1, 1)}
    features = dict.fromkeys(("initial_state", "final_state", "varlen"), "optional")
    domain = Domain(axes=single, features=features)
    found = cases("linear_attn", domain=domain)
    normalised = [case.direction for case in found if "normalize" in case.features]
    assert set(normalised) == {"fwd"}
    plain = {case.direction for case in found if "normalize" not in case.features}
    assert plain == {"fwd", "bwd"}


def test_forward_only_has_no_backward_cases() -> None:
    one = implementation("gla", backward=None)
    assert grid(CONTRACTS["gla"], one, "L2") == []
    assert grid(CONTRACTS["gla"], one, "L1")


@pytest.mark.parametrize(
    ("level", "budget", "message"),
    [("L3", "ci", "level must be L1"), ("L1", "all", "budget must be"), ("L1", -1, "got -1")],
)
def test_other_levels_and_budgets_are_refused(level: str, budget: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grid(CONTRACTS["gla"], implementation("gla"), level, budget)


@pytest.mark.parametrize(
    ("allowed", "wanted", "found"),
    [
        (AxisRange(), 17, 17),
        (AxisRange(choices=(64, 128)), 65, 128),
        (AxisRange(choices=(64, 128)), 300, 128),
        (AxisRange(16, 64, 16), 17, 32),
        (AxisRange(0, 64, 16), 100, 64),
        (AxisRange(512), 3, 512),
        (AxisRange(0, None, 512), 3, 512),
    ],
)
def test_the_nearest_allowed_size(allowed: AxisRange, wanted: int, found: int) -> None:
    assert nearest(allowed, wanted) == found


def test_promoted_cases_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "promoted"
    assert promoted(tmp_path) == []
    folder.mkdir()
    case = cases("gla", 1)[0]
    (folder / "one.json").write_text(json.dumps(case.to_json()), encoding="utf-8")
    assert promoted(tmp_path) == [case]
