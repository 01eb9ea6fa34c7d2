"""What host code does in a call, done again for new addresses without the host code.

Calls of one signature on dense batches decide, allocate and launch the same each time. So when one
has come often it is noted what is launched with what (:mod:`.recording`), and from then on a call
is its allocations and its launches: temporaries that may live together are one allocation, and
arguments are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor

from fla_core.call import Call
from fla_triton.calls import multiplied
from fla_triton.launch import ALIGNMENT, hooked, stream_of


@dataclass(frozen=True, slots=True)
class Room:
    """One allocation.

    Attributes:
        like: place of an argument of the same dtype; -1 if there is none.
        shape: None if it is that argument's.
        dtype: of its numbers.
        offsets: where in it, in bytes, what launches take.
        whole: whether torch takes it too.
        zeroed: whether it starts as zeros.
    """

    like: int
    shape: tuple[int, ...] | None
    dtype: torch.dtype
    offsets: tuple[int, ...]
    whole: bool
    zeroed: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One launch, or one operation of torch.

    Attributes:
        rooms: allocated before it.
        run: the launcher, or the operation.
        pick: its arguments out of all values.
        makes: whether what it returns is a room itself.
        over: places of the rooms that nobody reads after it.
    """

    rooms: tuple[Room, ...]
    run: Callable[..., Any]
    pick: Callable[[list[Any]], tuple[Any, ...]]
    makes: bool
    over: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """One direction of the calls of a signature.

    Attributes:
        scale: of those calls.
        multiply: whether torch multiplied float32 exactly; None where q is no float32.
        device: where they run.
        names: tensors of a call that launches read.
        grads: places of the gradients that they read.
        numbers: what launches take that is no address. Values are the stream, these, addresses of
            arguments, and of each room its addresses and, where torch takes it, itself.
        steps: in order.
        answers: places of the rooms that are returned.
    """

    scale: float
    multiply: bool | None
    device: torch.device
    names: tuple[str, ...]
    grads: tuple[int, ...]
    numbers: tuple[Any, ...]
    steps: tuple[Step, ...]
    answers: tuple[int, ...]

    def run(self, call: Call, grads: Sequence[Tensor | None] = ()) -> list[Tensor] | None:
        """What the host code would return, in its order; None where it must run itself."""
        if not self._serves(call):
            return None
        tensors: Any = call.tensors
        given: Any = [tensors[name] for name in self.names]
        if self.grads:
            given += [grads[place] for place in self.grads]
        addresses = [tensor.data_ptr() for tensor in given]
        if reduce(or_, addresses) % ALIGNMENT:
            return None
        device = self.device
        values = [stream_of(device.index), *self.numbers, *addresses]
        rooms: list[Any] = []
        for step in self.steps:
            for room in step.rooms:
                # Told a dtype and a device, torch takes twice as long.
                if room.shape is None:
                    rooms.append(torch.empty_like(given[room.like]))
                elif room.like < 0:
                    rooms.append(torch.empty(room.shape, dtype=room.dtype, device=device))
                else:
                    rooms.append(given[room.like].new_empty(room.shape))
                if room.zeroed:
                    rooms[-1].zero_()
                start = rooms[-1].data_ptr()
                values += [start + offset for offset in room.offsets]
                if room.whole:
                    values.append(rooms[-1])
            made = step.run(*step.pick(values))
            if step.makes:
                rooms.append(made)
            for place in step.over:
                rooms[place] = None
        return [rooms[place] for place in self.answers]

    def _serves(self, call: Call) -> bool:
        """Whether host code would do the same, as far as arguments other than tensors tell."""
        same = call.scale == self.scale and call.seqlens is None
        return same and not hooked() and self.multiply in (None, multiplied(call))
