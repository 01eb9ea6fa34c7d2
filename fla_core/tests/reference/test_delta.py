"""The delta rule: the recurrence against products of transitions, the chunks against it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import laws
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from laws import SCALE
from strategies import (
    Problem,
    decay_inputs,
    evaluate,
    gate_kinds,
    normal,
    problems,
    quick,
    worst_error,
)
from torch import Tensor

from fla_core.reference.decay import decay_recurrent
from fla_core.reference.delta import delta_chunk, delta_recurrent

ROWS = Problem(3, 20, 1, 3, 2)
PACKED = Problem(1, 90, 2, 3, 4, (0, 0, 20, 85, 85, 90))
GATE_SETS = [(), ("g",), ("gk",), ("g", "gk")]
gates = st.sampled_from(GATE_SETS).flatmap(
    lambda names: st.fixed_dictionaries(dict.fromkeys(names, gate_kinds))
)
functions = pytest.mark.parametrize("function", [delta_recurrent, delta_chunk])
every_gate_set = pytest.mark.parametrize("names", GATE_SETS, ids="+".join)

#: Step sizes; with keys of length one, at 1 a token overwrites and at 2 it reflects.
STEPS: Mapping[str, tuple[float, float]] = {
    "none": (0.0, 0.0),
    "up to 1": (0.0, 1.0),
    "up to 2": (0.0, 2.0),
    "overwriting": (1.0, 1.0),
    "reflecting": (2.0, 2.0),
}
#: How far keys lie from one common direction.
SPREADS: Mapping[str, float] = {"any": 1e9, "near": 0.1, "almost parallel": 1e-5, "equal": 0.0}
step_kinds, spreads = (st.sampled_from(sorted(kinds)) for kinds in (STEPS, SPREADS))


def delta_inputs(
    problem: Problem,
    gates: Mapping[str, str] | None = None,
    steps: str = "up to 2",
    spread: str = "any",
    *,
    per_channel: bool = False,
) -> dict[str, Tensor]:
    """Float64 inputs with keys of length one."""
    p, gen = problem, torch.Generator().manual_seed(problem.seed + 2)
    inputs = decay_inputs(p, gates or {})
    direction = normal(gen, p.B, 1, p.H, p.K)
    inputs["k"] = F.normalize(direction + SPREADS[spread] * inputs["k"], dim=-1)
    lowest, highest = STEPS[steps]
    shape = (p.B, p.T, p.H, p.V) if per_channel else (p.B, p.T, p.H)
    unit = torch.rand(shape, generator=gen, dtype=torch.float64)
    inputs["beta"] = lowest + (highest - lowest) * unit
    return inputs


def rounding(problem: Problem) -> float:
    """Error allowed in float32, of a tensor of order one.

    Rounding k . k once a token changes the state of equal keys and reflecting steps by one unit of
    rounding a token. Seen: 2.5 units a token, and 0.3 in the recurrence.
    """
    return 8 * (1 + problem.T) * torch.finfo(torch.float32).eps


def ordinary(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "ordinary")


def transitions(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, initial_state: Tensor, **gates: Tensor
) -> tuple[Tensor, Tensor]:
    """Every column of the state by itself: s <- (1 - beta k k^T) D s exp(gv) + beta v k."""
    B, T, H, K = q.shape
    o, final = torch.empty_like(v), torch.empty_like(initial_state)
    for b, h, c in torch.cartesian_prod(*(torch.arange(n) for n in (B, H, v.shape[-1]))).tolist():
        s = initial_state[b, h, :, c]
        for t in range(T):
            x = (b, t, h)
            step = beta[x] if beta.ndim == 3 else beta[(*x, c)]
            decay = torch.zeros(K, dtype=q.dtype)
            decay = decay + gates["g"][x] if "g" in gates else decay
            decay = decay + gates["gk"][x] if "gk" in gates else decay
            decay = decay + gates["gv"][(*x, c)] if "gv" in gates else decay
            projection = torch.eye(K, dtype=q.dtype) - step * torch.outer(k[x], k[x])
            s = projection @ decay.exp().diag() @ s + step * v[(*x, c)] * k[x]
            o[(*x, c)] = SCALE * q[x] @ s
        final[b, h, :, c] = s
    return o, final


@pytest.mark.parametrize("per_channel", [False, True], ids=["beta", "beta per channel"])
@pytest.mark.parametrize("names", [*GATE_SETS, ("gv",), ("g", "gk", "gv")], ids="+".join)
def test_recurrence_is_a_product_of_transitions(names, per_channel):
    inputs = delta_inputs(Problem(2, 9, 2, 5, 3), ordinary(*names), per_channel=per_channel)
    o, state = delta_recurrent(**inputs, scale=SCALE)
    want_o, want_state = transitions(**inputs)
    torch.testing.assert_close(o, want_o, rtol=0, atol=1e-12)
    torch.testing.assert_close(state, want_state, rtol=0, atol=1e-12)


@quick(150)
@given(problems(), gates, step_kinds, spreads, st.booleans(), st.sampled_from((1, 8, 32, 64)))
def test_chunk_equals_recurrence(problem, gates, steps, spread, initial_state, chunk_size):
    inputs = delta_inputs(problem, gates, steps, spread)
    if not initial_state:
        del inputs["initial_state"]
    want = evaluate(delta_recurrent, problem, inputs, scale=SCALE)
    got = evaluate(delta_chunk, problem, inputs, scale=SCALE, chunk_size=chunk_size)
    assert worst_error(got, want) < (1e-10, "")


def assert_accurate_in_float32(function: laws.Function, problem: Problem, inputs: laws.Inputs):
    inputs = {name: x.float() for name, x in inputs.items()}
    exact = {name: x.double() for name, x in inputs.items()}
    want = evaluate(delta_recurrent, problem, exact, scale=SCALE)
    got = evaluate(function, problem, inputs, torch.float32, scale=SCALE)
    assert worst_error(got, want, floor=1.0) < (rounding(problem), "")


@quick(40)
@given(problems(), gates, st.sampled_from((1, 8, 32)))
def test_another_key_is_read_than_written(problem, gates, chunk_size):
    inputs = delta_inputs(problem, gates, per_channel=False)
    gen = torch.Generator().manual_seed(problem.seed + 3)
    inputs["read"] = inputs["k"] * torch.rand(inputs["k"].shape, generator=gen, dtype=torch.float64)
    inputs.pop("beta")
    want = evaluate(delta_recurrent, problem, inputs, scale=SCALE)
    got = evaluate(delta_chunk, problem, inputs, scale=SCALE, chunk_size=chunk_size)
    assert worst_error(got, want) < (1e-10, "")


@functions
@quick(40)
@given(problem=problems(), gates=gates, steps=step_kinds, spread=spreads)
def test_float32_keeps_rounding_level(function, problem, gates, steps, spread):
    inputs = delta_inputs(problem, gates, steps, spread)
    assert_accurate_in_float32(function, problem, inputs)


@functions
@every_gate_set
def test_hard_resets_cost_no_accuracy(function, names):
    """Differences of cumulative sums would lose the ordinary gates behind a gate of -1e4."""
    problem = Problem(1, 129, 2, 8, 4)
    inputs = delta_inputs(problem, ordinary(*names), "up to 1")
    for name in names:
        inputs[name][:, ::7] = -1e4
    assert_accurate_in_float32(function, problem, inputs)


@functions
@every_gate_set
@pytest.mark.parametrize("steps", ["up to 2", "overwriting", "reflecting"])
@pytest.mark.parametrize("spread", ["almost parallel", "equal"])
def test_parallel_keys_stay_accurate(function, names, steps, spread):
    """The hardest triangular systems: every entry below the diagonal is near beta."""
    problem = Problem(1, 300, 1, 16, 4)
    inputs = delta_inputs(problem, dict.fromkeys(names, "tiny"), steps, spread)
    assert_accurate_in_float32(function, problem, inputs)


@functions
def test_largest_gates_stay_finite(function):
    problem = Problem(1, 70, 1, 3, 2)
    inputs = delta_inputs(problem, {"g": "zero", "gk": "zero"})
    for name in ("g", "gk"):
        inputs[name][:, 5::7] = torch.finfo(torch.float32).min
    found = evaluate(function, problem, inputs, torch.float32, scale=SCALE)
    assert all(bool(x.isfinite().all()) for x in found.values())


@functions
@every_gate_set
def test_no_step_leaves_the_state_to_decay(function, names):
    inputs = delta_inputs(Problem(2, 70, 2, 3, 4), ordinary(*names), "none")
    o, state, *_ = function(**inputs, scale=SCALE)
    del inputs["beta"]
    inputs["v"] = torch.zeros_like(inputs["v"])
    want_o, want_state = decay_recurrent(**inputs, scale=SCALE)
    torch.testing.assert_close(o, want_o, rtol=0, atol=1e-12)
    torch.testing.assert_close(state, want_state, rtol=0, atol=1e-12)


@functions
@every_gate_set
def test_a_full_step_stores_the_value_at_its_key(function, names):
    inputs = delta_inputs(Problem(2, 70, 2, 3, 4), ordinary(*names), "overwriting")
    inputs["q"] = inputs["k"]
    o = function(**inputs, scale=1.0)[0]
    torch.testing.assert_close(o, inputs["v"], rtol=0, atol=1e-12)


@functions
def test_two_reflections_at_one_key_restore_the_state(function):
    inputs = delta_inputs(Problem(2, 70, 2, 3, 4), {}, "reflecting")
    inputs["k"] = inputs["k"][:, ::2].repeat_interleave(2, 1)
    inputs["v"] = torch.zeros_like(inputs["v"])
    state = function(**inputs, scale=SCALE)[1]
    torch.testing.assert_close(state, inputs["initial_state"], rtol=0, atol=1e-12)


@functions
def test_equal_channel_gates_are_a_head_gate(function):
    inputs = delta_inputs(Problem(1, 69, 1, 3, 2, (0, 30, 35, 35, 69)), ordinary("g"))
    run = partial(function, scale=SCALE, bounds=(0, 30, 35, 35, 69))
    want = run(**inputs)
    g = inputs.pop("g")
    got = run(**inputs, gk=g[..., None].expand_as(inputs["k"]))
    for a, b in zip(got[:2], want[:2], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("names", [*GATE_SETS, ("g", "gk", "gv")], ids="+".join)
def test_gradcheck_of_the_recurrence(names):
    problem = Problem(1, 7, 1, 2, 3, (0, 4, 4, 7))
    inputs = delta_inputs(problem, ordinary(*names), per_channel="gv" in names)
    laws.assert_gradcheck(delta_recurrent, problem, inputs)


@every_gate_set
def test_gradcheck_of_the_chunks(names):
    problem = Problem(1, 7, 1, 2, 3, (0, 4, 4, 7))
    inputs = delta_inputs(problem, ordinary(*names))
    laws.assert_gradcheck(partial(delta_chunk, chunk_size=2), problem, inputs)


@quick(20)
@given(problems(), gates, st.sampled_from((4, 16)))
def test_states_are_those_before_each_chunk(problem, gates, chunk_size):
    inputs = delta_inputs(problem, gates)
    laws.assert_states_precede_chunks(delta_chunk, delta_recurrent, problem, inputs, chunk_size)


@functions
def test_packed_equals_separate_sequences(function):
    inputs = delta_inputs(PACKED, {"g": "mixed", "gk": "ordinary"})
    laws.assert_packed_is_separate(function, PACKED, inputs)


@functions
@every_gate_set
def test_state_carries_over(function, names):
    inputs = delta_inputs(Problem(2, 50, 2, 3, 4), ordinary(*names))
    laws.assert_state_carries_over(function, inputs, 21)


@functions
@every_gate_set
def test_later_tokens_change_nothing_before(function, names):
    inputs = delta_inputs(Problem(2, 192, 2, 16, 16), ordinary(*names))
    laws.assert_past_ignores_future(function, inputs, 128)


@functions
@pytest.mark.parametrize("poisoned", ["q", "k", "v", "beta", "g", "gk", "initial_state"])
@pytest.mark.parametrize("problem", [ROWS, PACKED], ids=["rows", "packed"])
def test_nan_stays_in_its_sequence(function, poisoned, problem):
    laws.assert_nan_stays(function, problem, delta_inputs(problem, ordinary("g", "gk")), poisoned)


@functions
@pytest.mark.parametrize("names", [(), ("g",), ("gk",)], ids="+".join)
@pytest.mark.parametrize("bounds", [None, (0, 0, 0), (0, 0)])
def test_no_tokens_give_a_copy_of_the_state(function, names, bounds):
    problem = Problem(1, 0, 1, 3, 2, bounds)
    laws.assert_no_tokens_copy_the_state(function, problem, delta_inputs(problem, ordinary(*names)))


@functions
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(function, dtype):
    inputs = delta_inputs(Problem(1, 40, 1, 4, 3), ordinary("gk"))
    rounded = {n: inputs[n].to(dtype) for n in ("q", "k", "v", "beta")}
    rounded |= {n: inputs[n].float() for n in ("gk", "initial_state")}
    o, state, *_ = function(**rounded, scale=SCALE)
    computed = torch.float64 if dtype == torch.float64 else torch.float32
    assert (o.dtype, state.dtype) == (dtype, computed)
    exact, exact_state = delta_recurrent(**{n: x.double() for n, x in rounded.items()}, scale=SCALE)
    torch.testing.assert_close(o, exact.to(dtype))
    torch.testing.assert_close(state, exact_state.to(computed))


@functions
@pytest.mark.parametrize("problem", [ROWS, Problem(2, 64, 2, 3, 4), PACKED])
def test_results_are_contiguous(function, problem):
    inputs = delta_inputs(problem, ordinary("g"))
    o, state, *_ = function(**inputs, scale=SCALE, bounds=problem.bounds)
    assert o.is_contiguous()
    assert state.is_contiguous()


def test_backward_of_the_recurrence_is_linear_in_time():
    problem = Problem(1, 40, 1, 3, 2, (0, 15, 40))
    inputs = delta_inputs(problem, ordinary("g", "gk", "gv"), per_channel=True)
    laws.assert_backward_is_linear_in_time(delta_recurrent, problem, inputs)


@pytest.mark.parametrize("chunk_size", [0, -16, 48])
def test_chunk_size_must_be_a_power_of_two(chunk_size):
    inputs = delta_inputs(Problem(1, 4, 1, 2, 2))
    with pytest.raises(ValueError, match=rf"chunk_size: expected .* got {chunk_size}"):
        delta_chunk(**inputs, scale=SCALE, chunk_size=chunk_size)
