"""What host code does for the calls of one signature, noted to be repeated without it.

The host code runs once more on tensors without memory, as it does in :mod:`.ahead`. Of each launch
that gives the compiled kernel and its arguments, of each temporary the launches between which
somebody needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fla_core.call import Call
from fla_triton.ahead import noting, without_memory
from fla_triton.calls import multiplied
from fla_triton.launch import ready_for
from fla_triton.lives import Memory, around
from fla_triton.replay import Replay, Room, Step

APART = 512
"""Bytes that what lies in one allocation starts at multiples of, as allocations themselves do."""

Run = Callable[[Call, Sequence[Tensor | None]], Iterable[Tensor]]

_plain = torch._C._DisableTorchDispatch
"""In the block modes of the caller, selective checkpointing say, see nothing of what is noted."""


def record(call: Call, grads: Sequence[Tensor | None], run: Run) -> Replay | None:
    """Note what host code does for a call, which has run before.

    Args:
        call: of whose signature the next ones are.
        grads: gradients of outputs, in backward.
        run: the host code; returns what it is to return, in order.

    Returns:
        None where calls must run it: it does more to tensors than the steps of a replay, what it
        launches is not known to be compiled, or the launcher is not known.
    """
    if call.seqlens is not None:
        return None
    with _plain():
        bare = call.holding({name: without_memory(x) for name, x in call.tensors.items()})
        bare_grads = [without_memory(x) for x in grads]
    answers: list[Tensor] = []
    # What cannot run without memory is not repeated.
    with suppress(Exception), noting() as noted, _Operations(noted) as seen:
        answers += run(bare, bare_grads)
    acts = [_act(one, call.q.device, answers) for one in noted]
    known = [act for act in acts if act is not None]
    if not answers or len(known) < len(acts):
        return None
    given: dict[str | int, Tensor] = {n: x for n, x in bare.tensors.items() if x is not None}
    given |= {place: x for place, x in enumerate(bare_grads) if x is not None}
    return _replay(call, given, known, answers, {_storage(x): x for x in seen.zeros})


@dataclass(frozen=True, slots=True)
class _Operation:
    """What torch did to tensors."""

    function: Any
    arguments: tuple[Any, ...]
    made: Any


class _Operations(TorchDispatchMode):
    """Notes what is done to tensors, but to allocate and to view them.

    Attributes:
        zeros: what was allocated as zeros.
    """

    ALLOCATE = frozenset(("empty", "empty_like", "new_empty"))
    ZEROS = frozenset(("zeros", "zeros_like", "new_zeros"))

    def __init__(self, noted: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._noted = noted
        self.zeros: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        with _plain():
            made, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if name in self.ZEROS:
            self.zeros.append(made)
        elif not (func.is_view or name in self.ALLOCATE):
            self._noted.append(None if kwargs else _Operation(func, args, made))
        return made


class _Part(NamedTuple):
    """An address: of a storage, and how many bytes into it."""

    storage: int
    offset: int


class _Whole(NamedTuple):
    """A tensor that torch takes."""

    storage: int
    shape: tuple[int, ...]


_Place = _Part | _Whole


class _Number(NamedTuple):
    """Anything else; numbers that are equal differ in type, zeros in sign."""

    kind: type
    text: str


_STREAM = object()


@dataclass(frozen=True, slots=True)
class _Act:
    """What a step does.

    Attributes:
        run: the step's.
        arguments: what it takes, by keys.
        made: storage of the tensor that it makes, 0 if it is a launch.
    """

    run: Callable[..., Any]
    arguments: list[tuple[Hashable, Any]]
    made: int


def _act(one: Any, device: torch.device, answers: Sequence[Tensor]) -> _Act | None:
    """None for what no step does: operations whose result is not returned, and others."""
    if isinstance(one, _Operation):
        if not isinstance(one.made, Tensor) or len(one.arguments) < 2:  # a step picks several
            return None
        made = 0 if one.function._schema.is_mutable else _storage(one.made)
        shapes = [x.shape for x in answers if _storage(x) == made]
        keyed = [(_whole(x) if isinstance(x, Tensor) else _key(x), x) for x in one.arguments]
        return _Act(_shaped(one.function, shapes[0]), keyed, made) if shapes else None
    ready = None if one is None else ready_for(one, device)
    raw = None if ready is None else ready.raw(one.grid, _STREAM)
    if raw is None:
        return None
    run, before, after = raw
    return _Act(run, [(_key(x), x) for x in (*before, *one.arguments, *after)], 0)


def _key(argument: object) -> Hashable:
    if isinstance(argument, Tensor):
        return _Part(_storage(argument), int(argument.storage_offset()) * argument.itemsize)
    return _STREAM if argument is _STREAM else _Number(type(argument), repr(argument))


def _whole(tensor: Tensor) -> _Whole:
    return _Whole(_storage(tensor), tuple(tensor.shape))


def _shaped(function: Callable[..., Tensor], shape: torch.Size) -> Callable[..., Tensor]:
    return lambda *arguments: function(*arguments).view(shape)


def _replay(
    call: Call,
    given: Mapping[str | int, Tensor],
    acts: Sequence[_Act],
    answers: Sequence[Tensor],
    zeros: Mapping[int, Tensor],
) -> Replay | None:
    """Number all that steps take; ``given`` are tensors by name, and gradients by place."""
    taken = {key: x for act in acts for key, x in act.arguments}
    numbers = {key: x for key, x in taken.items() if isinstance(key, _Number)}
    read = {name: part for name, x in given.items() if (part := _Part(_storage(x), 0)) in taken}
    memory = _memory(acts, {_storage(x) for x in given.values()}, answers, zeros)
    if memory is None or not read:
        return None
    groups = memory.groups()
    made = {act.made for act in acts}
    shown = [given[name] for name in read]
    rooms: list[Room | None] = []
    slots = {key: slot for slot, key in enumerate((_STREAM, *numbers, *read.values()))}
    for _, members in groups:
        if members[0] in made:
            rooms.append(None)
            continue
        inside = [x for x in taken if isinstance(x, _Part | _Whole) and x.storage in members]
        inside.sort(key=lambda x: isinstance(x, _Whole))
        slots |= {x: len(slots) + place for place, x in enumerate(inside)}
        shaped = {members[0]: taken[inside[-1]], **zeros, **{_storage(x): x for x in answers}}
        only = shaped[members[0]]
        if members[0] not in memory.alone:
            rooms.append(_shared(members, memory.sizes, inside, shown[0]))
        elif any(isinstance(x, _Whole) and x != _whole(only) for x in inside):
            return None
        else:
            rooms.append(_own(only, inside, shown, members[0] in zeros))
    if not slots.keys() >= taken.keys():  # a part of an argument, or one that torch takes
        return None
    lives = [life for life, _ in groups]
    steps = [
        Step(
            tuple(x for x, life in zip(rooms, lives, strict=True) if x and life[0] == index),
            act.run,
            itemgetter(*(slots[key] for key, _ in act.arguments)),
            bool(act.made),
            tuple(place for place, life in enumerate(lives) if life[1] == index),
        )
        for index, act in enumerate(acts)
    ]
    places = {members[0]: place for place, (_, members) in enumerate(groups)}
    return Replay(
        call.scale,
        multiplied(call),
        call.q.device,
        tuple(name for name in read if isinstance(name, str)),
        tuple(name for name in read if isinstance(name, int)),
        tuple(numbers.values()),
        tuple(steps),
        tuple(places[_storage(answer)] for answer in answers),
    )


def _shared(
    members: Sequence[int], sizes: Mapping[int, int], inside: Sequence[_Place], like: Tensor
) -> Room:
    """Room for several tensors, one behind the other."""
    ends = list(accumulate(sizes[one] for one in members))
    starts = dict(zip(members, (0, *ends), strict=False))
    offsets = tuple(starts[x.storage] + x.offset for x in inside if isinstance(x, _Part))
    return Room(0, (ends[-1] // like.itemsize,), like.dtype, offsets, False, False)


def _own(tensor: Tensor, inside: Sequence[_Place], shown: Sequence[Tensor], zeroed: bool) -> Room:
    """Room for one tensor."""
    same = [place for place, x in enumerate(shown) if x.dtype == tensor.dtype]
    shaped = [place for place in same if shown[place].shape == tensor.shape]
    shape = None if shaped else tuple(tensor.shape)
    offsets = tuple(x.offset for x in inside if isinstance(x, _Part))
    whole = len(offsets) < len(inside)
    return Room((*shaped, *same, -1)[0], shape, tensor.dtype, offsets, whole, zeroed)


def _memory(
    acts: Sequence[_Act], given: set[int], answers: Sequence[Tensor], zeros: Container[int]
) -> Memory | None:
    """None if answers are not whole allocations, each one's own, which a step fills."""
    lives: dict[int, tuple[int, int]] = {}
    sizes: dict[int, int] = {}
    used = [(i, k, x) for i, one in enumerate(acts) for k, x in one.arguments]
    tensors = [(i, k, x) for i, k, x in used if isinstance(x, Tensor) and _storage(x) not in given]
    # Boundaries, say: what is not of this call has memory already.
    usual = all(x.is_meta for _, _, x in tensors)
    usual &= all(_fills(x) for x in answers)
    kept = {_storage(answer) for answer in answers}
    alone = kept | {_storage(x) for _, key, x in tensors if isinstance(key, _Whole)}
    for index, key, tensor in tensors:
        one = _storage(tensor)
        if isinstance(key, _Whole):  # which a launch before has filled
            usual &= one in lives and _fills(tensor)
        lives[one] = around(lives.get(one, (index, index)), (index, index))
        sizes[one] = -(-tensor.untyped_storage().nbytes() // APART) * APART
    alone |= {one for one in lives if one in zeros}
    for index, act in enumerate(acts):
        if act.made:
            lives[act.made], sizes[act.made] = (index, index), 0
    if not usual or len(kept) < len(answers) or not lives.keys() >= kept:
        return None
    lives |= {one: (lives[one][0], len(acts)) for one in kept}
    return Memory(lives, sizes, frozenset(alone))


def _fills(tensor: Tensor) -> bool:
    """Whether it is all of its storage, in order."""
    return tensor.is_contiguous() and tensor.nbytes == tensor.untyped_storage().nbytes()


def _storage(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address
