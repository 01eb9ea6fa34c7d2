"""What every token recurrence and every chunk form obeys, whatever its operator.

A ``function`` takes named tensors, ``scale`` and ``bounds``, and returns o, the final state and
perhaps more. ``inputs`` hold all tensors of one `Problem`, float64, ``initial_state`` among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from strategies import Problem, evaluate
from torch import Tensor

SCALE = 0.37

Function = Callable[..., tuple[Tensor | None, ...]]
Inputs = Mapping[str, Tensor]


def part(inputs: Inputs, tokens: slice, rows: slice = slice(None)) -> dict[str, Tensor]:
    """Some tokens of every input, without the initial state."""
    return {name: x[rows, tokens] for name, x in inputs.items() if name != "initial_state"}


def assert_gradcheck(function: Function, problem: Problem, inputs: Inputs) -> None:
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}

    def outputs(*tensors: Tensor) -> tuple[Tensor | None, ...]:
        named = dict(zip(leaves, tensors, strict=True))
        return function(**named, scale=SCALE, bounds=problem.bounds)[:2]

    assert torch.autograd.gradcheck(outputs, tuple(leaves.values()))


def assert_states_precede_chunks(
    chunk: Function, recurrent: Function, problem: Problem, inputs: Inputs, size: int
) -> None:
    options = {"bounds": problem.bounds, "chunk_size": size, "return_states": True}
    states = chunk(**inputs, scale=SCALE, **options)[2]
    want = []
    for i, (row, tokens) in enumerate(problem.sequences):
        start = inputs["initial_state"][i : i + 1]
        for end in range(tokens.start, tokens.stop, size):
            past = part(inputs, slice(tokens.start, end), slice(row, row + 1))
            want.append(recurrent(**past, initial_state=start, scale=SCALE)[1][0])
    per_row = len(want) if problem.bounds else -(-problem.T // size)
    assert states.shape == (problem.B, per_row, problem.H, problem.K, problem.V)
    if want:
        torch.testing.assert_close(states.flatten(0, 1), torch.stack(want), rtol=0, atol=1e-10)


def assert_packed_is_separate(function: Function, problem: Problem, inputs: Inputs) -> None:
    o, state, *_ = function(**inputs, scale=SCALE, bounds=problem.bounds)
    for i, (_, tokens) in enumerate(problem.sequences):
        start = inputs["initial_state"][i : i + 1]
        want_o, want_state, *_ = function(**part(inputs, tokens), initial_state=start, scale=SCALE)
        torch.testing.assert_close(o[:, tokens], want_o, rtol=0, atol=1e-12)
        torch.testing.assert_close(state[i : i + 1], want_state, rtol=0, atol=1e-12)


def assert_state_carries_over(function: Function, inputs: Inputs, split: int) -> None:
    o, state, *_ = function(**inputs, scale=SCALE)
    start, outputs = inputs["initial_state"], []
    for tokens in (slice(0, split), slice(split, None)):
        half, start, *_ = function(**part(inputs, tokens), initial_state=start, scale=SCALE)
        outputs.append(half)
    torch.testing.assert_close(torch.cat(outputs, 1), o, rtol=0, atol=1e-12)
    torch.testing.assert_close(start, state, rtol=0, atol=1e-12)


def assert_past_ignores_future(function: Function, inputs: Inputs, length: int) -> None:
    """Bit for bit in float32; ``length`` is a multiple of the chunk size."""
    inputs = {name: x.float() for name, x in inputs.items()}
    o = function(**inputs, scale=SCALE)[0]
    past = part(inputs, slice(0, length))
    want = function(**past, initial_state=inputs["initial_state"], scale=SCALE)[0]
    assert torch.equal(o[:, :length], want)


def assert_nan_stays(function: Function, problem: Problem, inputs: Inputs, poisoned: str) -> None:
    """In the second sequence, in outputs and gradients."""
    clean = evaluate(function, problem, inputs, scale=SCALE)
    inputs = {name: x.clone() for name, x in inputs.items()}
    row, tokens = problem.sequences[1]
    place = (1,) if poisoned == "initial_state" else (row, tokens)
    inputs[poisoned][place] = float("nan")
    found = evaluate(function, problem, inputs, scale=SCALE)
    assert found["o"][row, tokens].isnan().any()
    for i, (other, span) in enumerate(problem.sequences):
        if i != 1:
            for name, x in found.items():
                where = (i,) if name in ("final_state", "dinitial_state") else (other, span)
                assert torch.equal(x[where], clean[name][where]), name


def assert_no_tokens_copy_the_state(function: Function, problem: Problem, inputs: Inputs) -> None:
    o, state, *_ = function(**inputs, scale=SCALE, bounds=problem.bounds)
    start = inputs["initial_state"]
    assert o.shape == (problem.B, 0, problem.H, problem.V)
    assert torch.equal(state, start)
    assert state.data_ptr() != start.data_ptr()
    rest = part(inputs, slice(None))
    state = function(**rest, scale=SCALE, bounds=problem.bounds)[1]
    assert torch.equal(state, torch.zeros_like(start))


def assert_backward_is_linear_in_time(function: Function, problem: Problem, inputs: Inputs) -> None:
    """The backward of a slice or a selection fills a whole row: one a token is quadratic."""
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    todo = [x.grad_fn for x in function(**leaves, scale=SCALE, bounds=problem.bounds)[:2]]
    seen = set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo.extend(parent for parent, _ in node.next_functions)
    names = [node.name() for node in seen]
    assert any("Unbind" in name for name in names)
    assert not [name for name in names if "Slice" in name or "Select" in name]
