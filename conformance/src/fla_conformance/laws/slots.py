"""slots: states in the slots of a pool give what they give as arguments, and no other slot is met.

Slots that no sequence names hold NaN: one that is read shows in what is returned, one that is
written in its bytes. An implementation that knows no pool is served by core's copies, which are
then what is checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.inputs import Inputs
from fla_conformance.laws.compare import disagreement
from fla_conformance.laws.cut import sequence, window
from fla_conformance.laws.law import Law
from fla_conformance.laws.runner import Runner
from fla_core.pooled import Asked, invoke_pooled
from fla_core.prepare import OPERATORS
from fla_core.slots import SKIP

_PACKED = frozenset({"varlen"})
_SEQUENCES, _TOKENS, _LENGTHS = 3, 5, (3, 0, 1, 5)
"""A step of decoding, as long as what is drafted ahead."""

Found = Mapping[str, Tensor]


def _check(case: Case, runner: Runner) -> str | None:
    short = _short(case)
    trial = _Trial(runner, runner.inputs(short if runner.takes(short) else case))
    for name, check in _WAYS.items():
        if found := check(trial):
            return f"{name}: {found}"
    return None


def _short(case: Case) -> Case:
    if case.lengths is None:
        return case.but(sizes={**case.sizes, "B": _SEQUENCES, "T": _TOKENS})
    return case.but(sizes={**case.sizes, "T": sum(_LENGTHS)}, lengths=_LENGTHS)


class _Trial:
    """One call, as it is and with its states in a pool."""

    def __init__(self, runner: Runner, inputs: Inputs) -> None:
        self.runner, self.inputs, case = runner, inputs, inputs.case
        bounds = inputs.cu_seqlens
        cuts = [0, case.sizes["T"]] if bounds is None else bounds.tolist()
        self.rows = [range(*pair) for pair in pairwise(cuts)]
        if bounds is None:
            self.rows *= case.sizes["B"]
        self.want = runner.run(inputs).outputs
        self.exact = runner.exact

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(len(rows) for rows in self.rows)

    def room(self, seed: int, span: int = 1) -> _Room:
        """A pool with slots for every sequence, in places of their own; NaN in all of it."""
        start = self.inputs.present["initial_state"]
        count = 2 * span * len(start) + 3
        places = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        table = places[: span * len(start)].view(-1, span).to(start.device)
        pool = start.new_full((count, *start.shape[1:]), float("nan"))
        return _Room(pool, table, pool.clone())

    def run(
        self, room: _Room, indices: Tensor, accepted: Tensor | None = None, inplace: bool = True
    ) -> Found:
        """Outputs of the call on a pool; the final state where the pool is only read."""
        contract, inputs = self.inputs.case.definition, self.inputs
        name = next(name for name, form in contract.public if form == "recurrent")
        flags = tuple(flag in inputs.flags for flag in contract.flags)
        rest = None, inputs.options, indices, accepted, inplace, True

        def through(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            given = {**inputs.tensors, **tensors, "initial_state": room.pool}
            asked = Asked(inputs.scale, inputs.cu_seqlens, *rest)
            o, state = invoke_pooled(OPERATORS[name], tuple(given.values()), flags, asked)
            return {"o": o} if inplace or state is None else {"o": o, "final_state": state}

        return self.runner.run(inputs, through=through).outputs

    def wrong(
        self,
        got: Found,
        want: Found,
        sequences: Sequence[int] | None = None,
        exact: bool = False,
    ) -> str | None:
        """How results differ, of some sequences or of all."""
        if sequences is not None:
            got, want = (self._of(found, sequences) for found in (got, want))
        return disagreement(got, want, self.inputs.case.dtype, exact, list(want))

    def _of(self, found: Found, sequences: Sequence[int]) -> Found:
        chosen = list(sequences)
        if self.inputs.cu_seqlens is None:
            return {name: tensor[chosen] for name, tensor in found.items()}
        rows = [row for n in chosen for row in self.rows[n]]
        return {n: x[:, rows] if n == "o" else x[chosen] for n, x in found.items()}


@dataclass(frozen=True, slots=True)
class _Room:
    pool: Tensor
    table: Tensor
    before: Tensor

    def put(self, slots: Tensor, states: Tensor) -> None:
        """Place states, as they were before the call."""
        self.pool[slots] = states
        self.before[slots] = states

    def elsewhere(self, slots: Sequence[Tensor] | Tensor) -> str | None:
        """What was written beside these slots."""
        now, then = (x.flatten(1).view(torch.uint8) for x in (self.pool, self.before))
        changed = set((now != then).any(1).nonzero().flatten().tolist())
        others = sorted(changed - set(map(int, slots)))
        return f"slot {others[0]} was written, which no sequence names" if others else None


def _in_place(trial: _Trial) -> str | None:
    start = trial.inputs.present["initial_state"]
    found: list[Found] = []
    for seed in (1, 2):
        room = trial.room(seed)
        slots = room.table[:, 0]
        room.put(slots, start)
        got = {**trial.run(room, slots), "final_state": room.pool[slots]}
        if problem := room.elsewhere(slots):
            return problem
        found.append(got)
    moved = trial.wrong(found[1], found[0], exact=trial.exact)
    return trial.wrong(found[0], trial.want) or (f"with other slots, {moved}" if moved else None)


def _read_only(trial: _Trial) -> str | None:
    room = trial.room(3)
    slots = room.table[:, 0].int()
    room.put(slots, trial.inputs.present["initial_state"])
    got = trial.run(room, slots, inplace=False)
    return room.elsewhere([]) or trial.wrong(got, trial.want)


def _skipping(trial: _Trial) -> str | None:
    room = trial.room(4)
    slots = room.table[:, 0].clone()
    room.put(slots, trial.inputs.present["initial_state"])
    away = [0, len(slots) - 1] if len(slots) > 2 else [0]
    kept = [n for n in range(len(slots)) if n not in away]
    slots[away] = SKIP
    outputs = trial.run(room, slots)
    got = {**outputs, "final_state": room.pool[room.table[:, 0]]}
    zeros = {name: torch.zeros_like(tensor) for name, tensor in outputs.items()}
    for n in away:
        if trial.wrong(outputs, zeros, [n], exact=True):
            return f"the outputs of sequence {n}, which is skipped, are not zeros"
    return room.elsewhere(slots[kept]) or trial.wrong(got, trial.want, kept)


def _each_token(trial: _Trial) -> str | None:
    room = trial.room(5, trial.longest)
    room.put(room.table[:, 0], trial.inputs.present["initial_state"])
    outputs = trial.run(room, room.table)
    named = [room.table[n, t] for n, rows in enumerate(trial.rows) for t in range(len(rows))]
    ends = [max(len(rows), 1) - 1 for rows in trial.rows]
    got = {**outputs, "final_state": room.pool[room.table[range(len(ends)), ends]]}
    return room.elsewhere(named) or trial.wrong(got, trial.want) or _prefixes(trial, room)


def _prefixes(trial: _Trial, room: _Room) -> str | None:
    """The state after each token, against calls that end there."""
    inputs, slots = trial.inputs, room.table
    if inputs.cu_seqlens is None:
        return _ends(trial, room, inputs, inputs.case, slots)
    for n, rows in enumerate(trial.rows):
        sizes = {**inputs.case.sizes, "T": len(rows)}
        case = inputs.case.but(lengths=None, sizes=sizes, features=inputs.case.features - _PACKED)
        alone = sequence(inputs, n)
        if found := _ends(trial, room, alone, case, slots[n : n + 1]):
            return f"in sequence {n}, {found}"
    return None


def _ends(trial: _Trial, room: _Room, dense: Inputs, case: Case, slots: Tensor) -> str | None:
    for count in range(1, min(case.sizes["T"], _TOKENS)):
        if not trial.runner.takes(case.but(sizes={**case.sizes, "T": count})):
            continue
        part = window(dense, 0, count)
        want = {"final_state": trial.runner.run(part).outputs["final_state"]}
        got = {"final_state": room.pool[slots[:, count - 1]]}
        if found := trial.wrong(got, want):
            return f"after {count} tokens, {found}"
    return None


def _accepted(trial: _Trial) -> str | None:
    room = trial.room(6, 3)
    device = room.table.device
    accepted = torch.tensor([3 - n % 2 for n in range(len(room.table))], device=device)
    slots = room.table.gather(1, accepted[:, None] - 1)[:, 0]
    room.put(slots, trial.inputs.present["initial_state"])
    got = trial.run(room, room.table, accepted, inplace=False)
    return room.elsewhere([]) or trial.wrong(got, trial.want)


_WAYS = {
    "in place": _in_place,
    "read only": _read_only,
    "with sequences skipped": _skipping,
    "with a slot for each token": _each_token,
    "from accepted tokens": _accepted,
}

SLOTS = Law(
    "slots",
    "states in the slots of a pool give what they give as arguments, and no other slot is touched",
    _check,
    needs=frozenset({"initial_state", "final_state"}),
    avoids=frozenset({"narrow_state", "states"}),
    direction="fwd",
    under="split",
    contracts=frozenset({"delta_rule", "gated_delta_rule", "kda", "gdn2"}),
)
