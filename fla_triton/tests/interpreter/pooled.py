"""States in a pool, in Triton's interpreter, against float64: ``python -m interpreter.pooled``.

Prints a JSON object of what was wrong, by case and way of calling. Slots that no sequence names
hold NaN, so that one read of them shows, and are compared bit by bit.
"""

# ruff: noqa: T201

from __future__ import annotations

import json
import os

os.environ["TRITON_INTERPRET"] = "1"

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.gold import gold
from fla_conformance.inputs import make_inputs
from fla_conformance.numerics import judge
from fla_core.call import Call
from fla_core.slots import Slots
from fla_triton.profiles import PROFILES
from interpreter.__main__ import kernels_for
from interpreter.cases import STATES, case
from interpreter.shims import install

EVERY = ("g", "gk", "gv", "beta", "beta_v")
CASES = tuple(
    one.but(direction="fwd")
    for one in (
        case("gated_delta_rule", "bfloat16", (3, 3, 2, 20, 17), ("g", "beta", *STATES)),
        case("delta_rule", "float32", (1, 0, 2, 16, 33), ("beta", *STATES), (1, 0, 4)),
        case(
            "kda",
            "float16",
            (2, 2, 2, 64, 16),
            (*STATES, "l2norm", "gate", "A_log", "dt_bias", "beta_sigmoid"),
        ),
        case("gdn2", "bfloat16", (1, 0, 1, 32, 24), STATES, (2, 3)),
        case("gated_delta_rule", "float16", (2, 3, 2, 20, 17), (*EVERY, *STATES)),
        case("kda", "bfloat16", (1, 0, 1, 16, 33), ("beta_v", "l2norm", *STATES), (1, 3)),
    )
)


class Pool:
    """A pool in which the states of a case lie in slots of their own, apart and out of order."""

    def __init__(self, states: Tensor, v_first: bool, span: int = 1, gap: int = 0) -> None:
        count = len(states)
        self.table = torch.randperm(2 * count * span + 3)[: count * span].view(count, span)
        stored = states.mT.contiguous() if v_first else states
        room = torch.full((2 * count * span + 3, stored[0].numel() + gap), float("nan"))
        self.v_first = v_first
        self.states = room[:, : stored[0].numel()].view(-1, *stored.shape[1:])
        self.states[self.table[:, 0]] = stored
        self.before, self.room, self.room_before = self.states.clone(), room, room.clone()

    def at(self, slots: Tensor) -> Tensor:
        """The states in some slots, ``[.., K, V]``."""
        found = self.states[slots]
        return found.mT if self.v_first else found

    def problem(self, slots: Sequence[Tensor] | Tensor) -> str:
        """What else than these slots was written, or what of them was not."""
        found, wanted = self._touched(), sorted(map(int, slots))
        return "" if found == wanted else f"wrote slots {found} instead of {wanted}"

    def _touched(self) -> list[int]:
        """Slots whose bytes are others than before, and -1 for what lies between them."""
        bits = [x.contiguous().view(torch.int32) for x in (self.states, self.before)]
        found = (bits[0] != bits[1]).flatten(1).any(1).nonzero().flatten().tolist()
        size = self.states[0].numel()
        gaps = [x[:, size:].contiguous().view(torch.int32) for x in (self.room, self.room_before)]
        return found if torch.equal(*gaps) else [-1, *found]


def without_states(call: Call) -> Call:
    """The call as an implementation's ``pooled`` gets it when the pool is written to."""
    base = call.but(initial_state=None)
    base.features -= {"initial_state", "final_state"}
    return base


def ways(one: Case) -> Iterator[tuple[str, str]]:
    """Name and failure of each way of calling."""
    inputs = make_inputs(one)
    call, right = inputs.call(), gold(one)
    # Of one multiprocessor few heads leave nothing idle, and tiles are wide; those of gdn2 are not.
    kernels = kernels_for(one.contract, replace(PROFILES["sm90"], multiprocessors=1))
    run: Callable[[Call, Slots], tuple[Tensor, ...]] = kernels.pooled  # type: ignore[attr-defined]
    base, start = without_states(call), call.initial_state
    lengths = [one.sizes["T"]] * one.sizes["B"] if one.lengths is None else list(one.lengths)
    ran = [n for n, length in enumerate(lengths) if length]

    def judged(o: Tensor, state: Tensor) -> str:
        return judge(one, {"o": o, "final_state": state}, right).failure

    for v_first, gap in ((False, 0), (False, 3), (True, 16)):
        pool = Pool(start, v_first, gap=gap)
        (o,) = run(base, Slots(pool.states, pool.table[:, 0], None, True, v_first))
        wrong = pool.problem(pool.table[ran, 0]) or judged(o, pool.at(pool.table[:, 0]))
        yield f"in place, {v_first=}, {gap=}", wrong

    pool = Pool(start, True)
    reading = replace(base, features=base.features | {"final_state"})
    slots = Slots(pool.states, pool.table[:, 0].int(), None, False, True)
    o, state = run(reading, slots)
    yield "read only", pool.problem([]) or judged(o, state.mT)

    span = max(lengths)
    pool = Pool(start, False, span)
    (o,) = run(base, Slots(pool.states, pool.table, None, True, False))
    last = torch.tensor([max(length, 1) - 1 for length in lengths])
    ends = pool.table.gather(1, last[:, None])[:, 0]
    named = [pool.table[n, t] for n, length in enumerate(lengths) for t in range(length)]
    yield "a slot for each token", pool.problem(named) or judged(o, pool.at(ends))

    pool = Pool(start, False, 3)
    accepted = torch.tensor([2 + n % 2 for n in range(len(lengths))])
    column = accepted[:, None] - 1
    pool.states[pool.table.gather(1, column)[:, 0]] = start
    pool.states[pool.table[:, 0]] = float("nan")
    slots = Slots(pool.states, pool.table, accepted, False, False)
    o, state = run(reading, slots)
    yield "accepted", judged(o, state)

    # In 32 bits it would be a column.
    accepted[0] += 1 << 32
    o, _ = run(reading, replace(slots, accepted=accepted))
    rows = o[:1] if one.lengths is None else o[:, : lengths[0]]
    yield "accepted beyond 32 bits", "" if bool((rows == 0).all()) else "rows are not zeros"

    for bad in (-1, len(pool.states)):
        pool = Pool(start, False)
        table = pool.table[:, 0].clone()
        table[0] = bad
        (o,) = run(base, Slots(pool.states, table, None, True, False))
        rows = o[:1] if one.lengths is None else o[:, : lengths[0]]
        wrong = "" if bool((rows == 0).all()) else "rows are not zeros"
        yield f"slot {bad}", wrong or pool.problem(pool.table[[n for n in ran if n], 0])


def main() -> None:
    """Run everything."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    install()
    found = {f"{one.id}: {name}": wrong for one in CASES for name, wrong in ways(one)}
    print(json.dumps({"ways": len(found), "wrong": {n: w for n, w in found.items() if w}}))


if __name__ == "__main__":
    main()
