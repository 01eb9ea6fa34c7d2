"""Raw arguments of the delta rules in Triton's interpreter, against the float64 recurrence."""

from __future__ import annotations

import importlib.util
from itertools import product

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from fla_conformance.case import Case
from fla_core.contracts import CONTRACTS
from fla_triton.declared import ROWS, Row
from fla_triton.plan import Problem
from fla_triton.profiles import PROFILES
from fla_triton.prologue import RAW, plan
from interpreter.cases import FILLS, IDLE, STATES, case, failures, grouped

GATE = ("gate", "A_log", "dt_bias")
STRENGTH = ("beta_sigmoid", "neg_eigval")
GATED = ("g", "beta", *STATES)
BOUND = {"lower_bound": -5.0}


def bounded(one: Case) -> Case:
    """The case with a gate that is bounded from below."""
    return one.but(features=one.features | {"lower_bound"}, options=BOUND)


SETS = {
    "heads": [
        (case("delta_rule", "bfloat16", (1, 70, 1, 60, 32), ("beta", "l2norm", *STATES)), IDLE),
        (case("delta_rule", "float16", (1, 33, 2, 16, 16), ("beta", "l2norm")), IDLE),
        (
            case("gated_delta_rule", "bfloat16", (1, 70, 1, 64, 64), (*GATED, "l2norm", *GATE)),
            FILLS,
        ),
        (
            case("gated_delta_rule", "float32", (1, 0, 2, 20, 17), (*GATED, *STRENGTH), (33, 0, 8)),
            IDLE,
        ),
    ],
    "channels": [
        (case("kda", "bfloat16", (1, 70, 1, 40, 32), (*STATES, "l2norm", *GATE, *STRENGTH)), IDLE),
        (bounded(case("kda", "float32", (1, 0, 2, 16, 16), ("gate", "l2norm"), (33, 0, 8))), IDLE),
        (bounded(case("kda", "bfloat16", (1, 66, 1, 16, 16), (*GATE, "beta_sigmoid"))), FILLS),
        (case("gdn2", "float16", (1, 40, 1, 16, 16), ("l2norm", *GATE)), IDLE),
    ],
    "regimes": [
        (one.but(regime=regime), IDLE)
        for one, regime in (
            (case("kda", "float32", (1, 70, 1, 16, 16), GATE), "resets"),
            (case("kda", "bfloat16", (1, 70, 1, 16, 16), GATE), "long_memory"),
            (bounded(case("kda", "float32", (1, 70, 1, 16, 16), GATE)), "long_memory"),
            (bounded(case("kda", "float32", (1, 70, 1, 16, 16), GATE)), "resets"),
            (case("gated_delta_rule", "float32", (1, 70, 1, 16, 16), (*GATED, *GATE)), "resets"),
            (
                case("delta_rule", "bfloat16", (1, 70, 1, 16, 16), ("beta", "l2norm")),
                "parallel_keys",
            ),
        )
    ],
    "grouped": [
        (grouped(case("kda", "bfloat16", (1, 40, 1, 16, 16), ("l2norm", *GATE)), 2), IDLE),
        (
            grouped(case("gated_delta_rule", "bfloat16", (1, 70, 2, 20, 17), (*GATED, *GATE)), 2),
            IDLE,
        ),
        (grouped(case("gated_delta_rule", "float32", (1, 40, 1, 16, 16), GATED), 4), IDLE),
    ],
    "some gradients": [
        (
            case("kda", "float32", (1, 20, 1, 16, 16), (*GATE, *STRENGTH, "l2norm")).but(
                gradients=frozenset(wanted)
            ),
            IDLE,
        )
        for wanted in (("A_log",), ("dt_bias", "v"), ("q",), ("beta",), ("g", "k"), ("v",))
    ],
    "decoding": [
        (bounded(case("kda", "bfloat16", (2, 3, 1, 20, 17), (*STATES, *GATE, "l2norm"))), IDLE),
        (
            grouped(
                case(
                    "gated_delta_rule",
                    "bfloat16",
                    (2, 1, 2, 20, 17),
                    (*GATED, *GATE, *STRENGTH, "l2norm"),
                    direction="fwd",
                ),
                2,
            ),
            IDLE,
        ),
    ],
}


@pytest.mark.parametrize("name", SETS)
def test_interpreted_kernels_are_right(name: str) -> None:
    assert failures(SETS[name]) == {}


@pytest.mark.parametrize("row", [r for r in ROWS if r.family.startswith("delta")], ids=str)
def test_the_core_lowers_no_feature_that_is_declared(row: Row) -> None:
    contract = CONTRACTS[row.contract]
    features = RAW.intersection(contract.features)
    assert features == RAW.intersection(row.features)
    lowerings, left = contract.lowerings_for(features | set(row.required), row.domain())
    assert (lowerings, left) == ((), features | set(row.required))


@pytest.mark.parametrize("arch", PROFILES)
def test_every_plan_covers_all_tokens_and_fits_its_device(arch: str) -> None:
    profile = PROFILES[arch]
    for tokens, heads, keys in product((1, 17, 131072), (1, 16, 96), (1, 60, 64, 128, 256)):
        found = plan(Problem(1, tokens, tokens, heads, keys, 64, 2), profile)
        rows, width = found.constants["BT"], found.constants["BK"]
        assert 0 < found.grid <= profile.grid_limit
        assert found.grid // heads * rows >= tokens
        assert width >= keys
        # What is written where it was read must belong to one thread alone.
        assert rows * width >= found.warps * profile.warp_width
