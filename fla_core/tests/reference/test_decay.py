"""Decay-gated linear attention: the recurrence against its closed form, the chunks against it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import (
    Problem,
    decay_inputs,
    draw_gate,
    evaluate,
    gate_kinds,
    magnitudes,
    normal,
    problems,
    quick,
    worst_error,
)
from torch import Tensor

from fla_core.reference.decay import decay_chunk, decay_recurrent

SCALE = 0.37
#: How far an entry may be off, relative to the sum of its absolute terms. Seen: 4 units of
#: rounding, and 18 where two gates of about -50 are added (25 would be the most).
ROUNDING = 32 * torch.finfo(torch.float32).eps
UNDERFLOW = 1e-34
GATE_SETS = [
    (),
    ("g",),
    ("gk",),
    ("gv",),
    ("g", "gk"),
    ("g", "gv"),
    ("gk", "gv"),
    ("g", "gk", "gv"),
]
gates = st.sampled_from(GATE_SETS).flatmap(
    lambda names: st.fixed_dictionaries(dict.fromkeys(names, gate_kinds))
)
functions = pytest.mark.parametrize("function", [decay_recurrent, decay_chunk])
every_gate_set = pytest.mark.parametrize("names", GATE_SETS, ids="+".join)


def ordinary(names: tuple[str, ...]) -> dict[str, str]:
    return dict.fromkeys(names, "ordinary")


def closed_form(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    initial_state: Tensor,
    scale: float,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Every pair of tokens written out, for one dense batch and gates of moderate size."""
    T = q.shape[1]

    def between(gate: Tensor | None) -> Tensor:
        if gate is None:
            return torch.ones(T, T + 1, 1, 1, 1, dtype=q.dtype)
        total = torch.cat([torch.zeros_like(gate[:, :1]), gate.cumsum(1)], 1).movedim(1, 0)
        return (total[1:, None] - total[None]).exp()  # [T, T + 1, B, H, ...], from 0 = the state

    rows = between(gk) * between(None if g is None else g[..., None])
    columns = between(gv)
    mask = torch.ones(T, T, dtype=q.dtype).tril()
    pairs = torch.einsum(
        "bihk,bjhk,ijbhk->ijbh",
        *torch.broadcast_tensors(q, k),
        (rows[:, 1:] * mask[..., None, None, None]).expand(T, T, *q[:, 0].shape),
    )
    o = torch.einsum("ijbh,bjhv,ijbhv->bihv", pairs, v, columns[:, 1:].expand(T, T, *v[:, 0].shape))
    o = o + torch.einsum(
        "bihk,bhkv,ibhk,ibhv->bihv",
        q,
        initial_state,
        rows[:, 0].expand(T, *q[:, 0].shape),
        columns[:, 0].expand(T, *v[:, 0].shape),
    )
    last = torch.einsum(
        "bjhk,bjhv,jbhk,jbhv->bhkv",
        k,
        v,
        rows[-1, 1:].expand(T, *q[:, 0].shape),
        columns[-1, 1:].expand(T, *v[:, 0].shape),
    )
    carried = initial_state * rows[-1, 0][..., None] * columns[-1, 0][..., None, :]
    return o * scale, last + carried


@functions
@every_gate_set
def test_equals_closed_form(function, names):
    inputs = decay_inputs(Problem(2, 19, 2, 5, 3), ordinary(names))
    o, state, *_ = function(**inputs, scale=SCALE)
    want_o, want_state = closed_form(**inputs, scale=SCALE)
    torch.testing.assert_close(o, want_o, rtol=0, atol=1e-12)
    torch.testing.assert_close(state, want_state, rtol=0, atol=1e-12)


@quick(150)
@given(problems(), gates, st.booleans(), st.sampled_from((1, 8, 16, 64)))
def test_chunk_equals_recurrence(problem, gates, initial_state, chunk_size):
    inputs = decay_inputs(problem, gates, initial_state=initial_state)
    want = evaluate(decay_recurrent, problem, inputs, scale=SCALE)
    got = evaluate(decay_chunk, problem, inputs, scale=SCALE, chunk_size=chunk_size)
    assert worst_error(got, want) < (1e-10, "")


@quick(60)
@given(problems(), gates)
def test_float32_keeps_rounding_level(problem, gates):
    """Of each entry's own terms, hence also after a hard reset has shrunk them."""
    inputs = {name: x.float() for name, x in decay_inputs(problem, gates).items()}
    exact = {name: x.double() for name, x in inputs.items()}
    want = evaluate(decay_recurrent, problem, exact, scale=SCALE)
    terms = magnitudes(decay_recurrent, problem, exact, scale=SCALE)
    for function in (decay_recurrent, decay_chunk):
        got = evaluate(function, problem, inputs, torch.float32, scale=SCALE)
        for name, x in got.items():
            error = (x.double() - want[name]).abs()
            assert bool((error <= ROUNDING * terms[name] + UNDERFLOW).all()), name


@functions
def test_largest_gates_stay_finite(function):
    problem = Problem(1, 70, 1, 3, 2)
    lowest = torch.finfo(torch.float32).min
    inputs = decay_inputs(problem, {"g": "zero", "gk": "zero", "gv": "zero"})
    for name in ("g", "gk", "gv"):
        inputs[name][:, 5::7] = lowest
    found = evaluate(function, problem, inputs, torch.float32, scale=SCALE)
    assert all(bool(x.isfinite().all()) for x in found.values())


@functions
@every_gate_set
def test_gradcheck(function, names):
    problem = Problem(1, 7, 1, 2, 3, (0, 4, 4, 7))
    inputs = {n: x.requires_grad_() for n, x in decay_inputs(problem, ordinary(names)).items()}
    options = {"chunk_size": 4} if function is decay_chunk else {}

    def outputs(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        named = dict(zip(inputs, tensors, strict=True))
        return function(**named, scale=SCALE, bounds=problem.bounds, **options)[:2]

    assert torch.autograd.gradcheck(outputs, tuple(inputs.values()))


@quick(20)
@given(problems(), gates, st.sampled_from((4, 16)))
def test_states_are_those_before_each_chunk(problem, gates, chunk_size):
    inputs = decay_inputs(problem, gates)
    states = decay_chunk(
        **inputs, scale=SCALE, bounds=problem.bounds, chunk_size=chunk_size, return_states=True
    )[2]
    want = []
    for i, (row, tokens) in enumerate(problem.sequences):
        for end in range(tokens.start, tokens.stop, chunk_size):
            past = {
                n: x[row : row + 1, tokens.start : end]
                for n, x in inputs.items()
                if n != "initial_state"
            }
            start = inputs["initial_state"][i : i + 1]
            want.append(decay_recurrent(**past, initial_state=start, scale=SCALE)[1][0])
    per_row = len(want) if problem.bounds else -(-problem.T // chunk_size)
    assert states.shape == (problem.B, per_row, problem.H, problem.K, problem.V)
    if want:
        torch.testing.assert_close(states.flatten(0, 1), torch.stack(want), rtol=0, atol=1e-10)


@functions
def test_packed_equals_separate_sequences(function):
    problem = Problem(1, 90, 2, 3, 4, (0, 0, 20, 85, 85, 90))
    inputs = decay_inputs(problem, {"g": "mixed", "gk": "ordinary", "gv": "ordinary"})
    o, state, *_ = function(**inputs, scale=SCALE, bounds=problem.bounds)
    for i, (_, tokens) in enumerate(problem.sequences):
        one = {n: x[i : i + 1] if n == "initial_state" else x[:, tokens] for n, x in inputs.items()}
        want_o, want_state, *_ = function(**one, scale=SCALE)
        torch.testing.assert_close(o[:, tokens], want_o, rtol=0, atol=1e-12)
        torch.testing.assert_close(state[i : i + 1], want_state, rtol=0, atol=1e-12)


@functions
@every_gate_set
def test_state_carries_over(function, names):
    problem = Problem(2, 50, 2, 3, 4)
    inputs = decay_inputs(problem, ordinary(names))
    start = inputs.pop("initial_state")
    o, state, *_ = function(**inputs, initial_state=start, scale=SCALE)
    halves = []
    for tokens in (slice(0, 21), slice(21, 50)):
        part = {n: x[:, tokens] for n, x in inputs.items()}
        half, start, *_ = function(**part, initial_state=start, scale=SCALE)
        halves.append(half)
    torch.testing.assert_close(torch.cat(halves, 1), o, rtol=0, atol=1e-12)
    torch.testing.assert_close(start, state, rtol=0, atol=1e-12)


@functions
@every_gate_set
def test_later_tokens_change_nothing_before(function, names):
    inputs = decay_inputs(Problem(2, 192, 2, 16, 16), ordinary(names))
    state = inputs.pop("initial_state").float()
    inputs = {n: x.float() for n, x in inputs.items()}
    o = function(**inputs, initial_state=state, scale=SCALE)[0]
    past = {n: x[:, :128] for n, x in inputs.items()}
    assert torch.equal(o[:, :128], function(**past, initial_state=state, scale=SCALE)[0])


@functions
@pytest.mark.parametrize("poisoned", ["q", "k", "v", "g", "gk", "gv", "initial_state"])
@pytest.mark.parametrize(
    "problem",
    [Problem(3, 20, 1, 3, 2), Problem(1, 69, 1, 3, 2, (0, 30, 35, 35, 69))],
    ids=["rows", "packed"],
)
def test_nan_stays_in_its_sequence(function, poisoned, problem):
    kinds = ordinary(("g", "gk", "gv"))
    clean = evaluate(function, problem, decay_inputs(problem, kinds), scale=SCALE)
    inputs = decay_inputs(problem, kinds)
    row, tokens = problem.sequences[1]
    if poisoned == "initial_state":
        inputs[poisoned][1] = float("nan")
    else:
        inputs[poisoned][row, tokens] = float("nan")
    found = evaluate(function, problem, inputs, scale=SCALE)
    assert found["o"][row, tokens].isnan().any()
    for name, x in found.items():
        for i, (other, span) in enumerate(problem.sequences):
            if i != 1:
                where = i if name in ("final_state", "dinitial_state") else (other, span)
                torch.testing.assert_close(x[where], clean[name][where], rtol=0, atol=0)


@functions
@pytest.mark.parametrize(
    "problem",
    [Problem(2, 0, 1, 3, 2), Problem(1, 0, 1, 3, 2, (0, 0, 0)), Problem(1, 0, 1, 3, 2, (0, 0))],
    ids=["rows", "packed", "one packed"],
)
def test_no_tokens_give_a_copy_of_the_state(function, problem):
    inputs = decay_inputs(problem, {"g": "zero"})
    o, state, *_ = function(**inputs, scale=SCALE, bounds=problem.bounds)
    assert o.shape == (problem.B, 0, 1, 2)
    assert torch.equal(state, inputs["initial_state"])
    assert state.data_ptr() != inputs["initial_state"].data_ptr()
    del inputs["initial_state"]
    state = function(**inputs, scale=SCALE, bounds=problem.bounds)[1]
    assert torch.equal(state, torch.zeros(problem.N, 1, 3, 2, dtype=torch.float64))


@functions
@pytest.mark.parametrize(
    ("dtype", "computed"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_dtypes(function, dtype, computed):
    gen = torch.Generator().manual_seed(0)
    q, k, v = (normal(gen, 1, 9, 1, 4).to(dtype) for _ in range(3))
    gk = draw_gate(gen, "ordinary", 1, 9, 1, 4).float()
    o, state, *_ = function(q, k, v, gk=gk, scale=SCALE)
    assert (o.dtype, state.dtype) == (dtype, computed)
    exact, exact_state, *_ = decay_recurrent(
        q.double(), k.double(), v.double(), gk=gk.double(), scale=SCALE
    )
    torch.testing.assert_close(o, exact.to(dtype))
    torch.testing.assert_close(state, exact_state.to(computed))


def test_backward_of_the_recurrence_is_linear_in_time():
    """The backward of a slice or a selection fills a whole row: one a token is quadratic."""
    problem = Problem(1, 40, 1, 3, 2, (0, 15, 40))
    inputs = {
        n: x.requires_grad_() for n, x in decay_inputs(problem, ordinary(("g", "gk", "gv"))).items()
    }
    todo = [x.grad_fn for x in decay_recurrent(**inputs, scale=SCALE, bounds=problem.bounds)]
    seen = set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo.extend(parent for parent, _ in node.next_functions)
    names = [node.name() for node in seen]
    assert any("Unbind" in name for name in names)
    assert not [name for name in names if "Slice" in name or "Select" in name]


@pytest.mark.parametrize("chunk_size", [0, -16, 48])
def test_chunk_size_must_be_a_power_of_two(chunk_size):
    inputs = decay_inputs(Problem(1, 4, 1, 2, 2), {})
    with pytest.raises(ValueError, match=rf"chunk_size: expected .* got {chunk_size}"):
        decay_chunk(**inputs, scale=SCALE, chunk_size=chunk_size)
