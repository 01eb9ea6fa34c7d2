"""Random shapes, features and boundaries of every contract against the float64 recurrence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_cases import CONTRACT_OF, GROUPED, LEVELS, Case, gold_call, make_inputs, public_call
from op_compare import assert_exact, evaluate

#: What each public name takes beside q, k and v: optional arguments, then switches.
CHOICES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "chunk_linear_attn": (("initial_state",), ("normalize",)),
    "fused_chunk_linear_attn": (("initial_state",), ("normalize",)),
    "fused_recurrent_linear_attn": (("initial_state",), ("normalize", "reverse")),
    "chunk_simple_gla": (("g", "g_gamma", "initial_state"), ("state_v_first",)),
    "fused_chunk_simple_gla": (("g", "initial_state"), ()),
    "fused_recurrent_simple_gla": (
        ("g", "g_gamma", "initial_state"),
        ("reverse", "state_v_first"),
    ),
    "parallel_simple_gla": (("g",), ()),
    "chunk_retention": (("initial_state",), ()),
    "fused_chunk_retention": (("initial_state",), ()),
    "fused_recurrent_retention": (("initial_state",), ("reverse", "state_v_first")),
    "parallel_retention": ((), ()),
    "chunk_lightning_attn": (("initial_state",), ()),
    "fused_recurrent_lightning_attn": (("initial_state",), ("reverse",)),
    "chunk_gla": (("initial_state",), ("state_v_first",)),
    "fused_chunk_gla": (("initial_state",), ("state_v_first",)),
    "fused_recurrent_gla": (("gk", "gv", "initial_state"), ("reverse", "state_v_first")),
    "chunk_delta_rule": (("initial_state",), ("l2norm",)),
    "fused_chunk_delta_rule": (("initial_state",), ("l2norm",)),
    "fused_recurrent_delta_rule": (("beta", "initial_state"), ("l2norm",)),
    "chunk_gated_delta_rule": (("initial_state",), ("l2norm", "state_v_first")),
    "chunk_gdn": (("initial_state",), ("l2norm", "state_v_first")),
    "fused_recurrent_gated_delta_rule": (
        ("gk", "gv", "initial_state"),
        ("l2norm", "state_v_first"),
    ),
    "fused_recurrent_gdn": (("gk", "gv", "initial_state"), ("l2norm", "state_v_first")),
    "chunk_kda": (("initial_state",), ("l2norm", "state_v_first")),
    "fused_recurrent_kda": (("initial_state",), ("l2norm", "state_v_first")),
    "chunk_gdn2": (("initial_state",), ("l2norm", "state_v_first")),
    "fused_recurrent_gdn2": (("initial_state",), ("l2norm", "state_v_first")),
}
REQUIRED = {"chunk_gla": ("gk",), "fused_chunk_gla": ("gk",)}
LENGTHS = (0, 1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 67)
PACKED_LENGTHS = (0, 0, 1, 2, 16, 17, 33)


def some(draw: st.DrawFn, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if draw(st.booleans()))


@st.composite
def gate_arguments(draw: st.DrawFn, op: str) -> dict[str, Any]:
    """Gates and beta of the delta families, plain or computed in the kernel."""
    contract = next(c for c, names in CONTRACT_OF.items() if op in names)
    if contract == "delta_rule" and op != "fused_recurrent_delta_rule":
        return {"args": ("beta",), "flags": ()}
    if contract not in GROUPED:
        return {"args": REQUIRED.get(op, ()), "flags": ()}
    wide_beta = contract == "kda" or "recurrent" in op
    args: tuple[str, ...] = ("g",)
    flags: tuple[str, ...] = ()
    if contract != "gdn2":
        args = (*args, draw(st.sampled_from(["beta", "beta_v"])) if wide_beta else "beta")
        flags = draw(st.sampled_from([(), ("beta_sigmoid",), ("beta_sigmoid", "neg_eigval")]))
    bound, bounded = None, contract in ("kda", "gdn2")
    if draw(st.booleans()):
        flags = (*flags, "gate")
        bound = draw(st.sampled_from([None, -5.0, -0.25])) if bounded else None
        args = (*args, *some(draw, ("dt_bias",)))
        args = (*args, *(("A_log",) if bound is None else some(draw, ("A_log",))))
    return {"args": args, "flags": flags, "lower_bound": bound}


@st.composite
def cases(draw: st.DrawFn, contract: str) -> Case:
    """Any call of a contract that is legal."""
    op = draw(st.sampled_from(CONTRACT_OF[contract]))
    optional, switches = CHOICES[op]
    gates = draw(gate_arguments(op))
    heads = draw(st.sampled_from([1, 2, 3]))
    group = draw(st.sampled_from([1, 2, 4])) if contract in GROUPED else 1
    flags = (*some(draw, switches), *gates["flags"])
    args = (*some(draw, optional), *gates["args"])
    if "normalize" in flags:
        args = (*args, *some(draw, ("initial_z",)))
    if not op.startswith("parallel_"):
        flags = (*flags, *some(draw, ("final_state",)))
    packed = st.lists(st.sampled_from(PACKED_LENGTHS), max_size=4).map(tuple)
    return Case(
        op,
        args,
        flags,
        B=draw(st.sampled_from([1, 2])),
        T=draw(st.sampled_from(LENGTHS)),
        H=heads,
        HV=heads * group,
        K=draw(st.sampled_from([1, 2, 3, 8])),
        V=draw(st.sampled_from([1, 2, 3, 8])),
        lens=draw(st.none() | packed),
        scale=draw(st.sampled_from([None, 1, -0.3])),
        gates=draw(st.sampled_from(sorted(LEVELS))),
        lower_bound=gates.get("lower_bound"),
        strided=draw(st.booleans()),
        seed=draw(st.integers(0, 2**16)),
    )


@pytest.mark.parametrize("contract", CONTRACT_OF)
def test_any_legal_call_equals_the_recurrence(contract: str) -> None:
    @settings(max_examples=40, derandomize=True, deadline=None, database=None)
    @given(case=cases(contract))
    def check(case: Case) -> None:
        inputs = make_inputs(case)
        got, gold = evaluate(public_call, case, inputs), evaluate(gold_call, case, inputs)
        assert_exact(got, gold)

    check()


def test_the_choices_cover_every_operator() -> None:
    assert set(CHOICES) == {op for names in CONTRACT_OF.values() for op in names}
