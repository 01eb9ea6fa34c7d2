"""What kernels need to know of a call: its sizes, constants and tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from fla_core.call import Call
from fla_core.dtypes import multiplies_exactly
from fla_triton.launch import Launches
from fla_triton.plan import Plan, Problem
from fla_triton.profiles import Profile

FEW_TERMS = 64
"""Tokens and channels up to which float32 is multiplied exactly."""


def problem_of(call: Call) -> Problem:
    """Sizes of a call, its heads those of v; of packed sequences the host's copy has lengths."""
    batch, tokens, heads, _ = call.v.shape
    return Problem(
        sequences=call.num_sequences,
        tokens=batch * tokens,
        longest=tokens if call.seqlens is None else call.seqlens.longest,
        heads=heads,
        K=call.q.shape[3],
        V=call.v.shape[3],
        itemsize=call.q.element_size(),
        packed=call.seqlens is not None,
        gated=call.get("g") is not None,
    )


def precision(q: Tensor, problem: Problem, profile: Profile) -> str:
    """How matrix products of float32 multiply: as torch's own do, in words of the chip's compiler.

    Where torch multiplies exactly, three products of TensorFloat32 keep 22 bits, enough for sums of
    many terms; few terms are multiplied in float32. 16-bit factors are exact in any case.
    """
    if q.dtype != torch.float32 or not multiplies_exactly(q.device):
        return profile.fast
    return "ieee" if problem.longest + problem.K + problem.V <= FEW_TERMS else profile.exact


Planned = TypeVar("Planned")


@dataclass(frozen=True, slots=True)
class Settled(Generic[Planned]):
    """What calls of one signature share in one direction.

    Attributes:
        problem: sizes.
        plan: as the family made it.
        multiply: whether torch multiplies float32 exactly; None where q is no float32.
        launches: kernels that ran for it.
    """

    problem: Problem
    plan: Planned
    multiply: bool | None
    launches: Launches = field(default_factory=Launches)


def multiplied(call: Call) -> bool | None:
    """Whether torch multiplies float32 exactly where the call runs; None where q is no float32."""
    q: Any = call.tensors["q"]
    return multiplies_exactly(q.device) if q.dtype == torch.float32 else None


def settled(call: Call, key: Hashable, make: Callable[[Problem], Planned]) -> Settled[Planned]:
    """Return what earlier calls of the signature have settled, or settle it.

    Args:
        call: what is computed.
        key: tells apart what a signature leaves open: direction, gradients of which outputs came.
        make: plans a problem.
    """
    longest = None if call.seqlens is None else call.seqlens.longest
    multiply = multiplied(call)
    found: Settled[Planned] | None = call.memo.get(key)
    if (
        found is None
        or found.multiply != multiply
        or (longest is not None and found.problem.longest != longest)
    ):
        # One of a kind is kept: lengths may never come twice.
        problem = problem_of(call)
        found = call.memo[key] = Settled(problem, make(problem), multiply)
    return found


def common(call: Call, problem: Problem) -> dict[str, Any]:
    """Constants that every kernel of the family takes."""
    return {
        "H": problem.heads,
        "K": problem.K,
        "V": problem.V,
        "HAS_G": call.get("g") is not None,
        "HAS_GAMMA": call.get("g_gamma") is not None,
        "VARLEN": problem.packed,
    }


def qkv(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values: as attributes of the call they cost a function call each."""
    tensors: Any = call.tensors
    return tensors["q"], tensors["k"], tensors["v"]


def gates(call: Call) -> tuple[Tensor | None, Tensor | None]:
    """Decay of tokens and of heads, where there is one."""
    return call.tensors.get("g"), call.tensors.get("g_gamma")


def start_of(call: Call) -> Tensor | None:
    """The state before the first token."""
    return call.tensors.get("initial_state")


def boundaries(call: Call) -> Tensor | None:
    """Boundaries of packed sequences on the device."""
    return None if call.seqlens is None else call.seqlens.device


def chunk_table(call: Call, problem: Problem, todo: Plan) -> tuple[Tensor | None, int]:
    """The chunks of a plan, as ``chunks_of`` finds them."""
    return chunks_of(call, problem, todo.tiles.chunk_size)


def chunks_of(call: Call, problem: Problem, size: int) -> tuple[Tensor | None, int]:
    """Table of the chunks of packed sequences, and how many chunks there are."""
    if call.seqlens is None:
        return None, problem.chunks(size)
    table = call.seqlens.chunk_table(size)
    return table, table.shape[0]


def float32(like: Tensor, *shape: int) -> Tensor:
    """An unwritten float32 tensor beside another."""
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def new_state(call: Call, problem: Problem) -> Tensor:
    """An unwritten state of every sequence and head."""
    q, _, _ = qkv(call)
    return float32(q, problem.sequences, problem.heads, problem.K, problem.V)


def pass_on(call: Call, last: Tensor | None) -> None:
    """Final states of a call without tokens, where there is room for them: the initial ones."""
    start = start_of(call)
    if last is not None:
        last.zero_() if start is None else last.copy_(start)


def gradients_of_nothing(
    call: Call, dlast: Tensor | None, needs: frozenset[str]
) -> dict[str, Tensor]:
    """Gradients of a call without tokens: the initial state is the final one."""
    found = {
        n: torch.zeros_like(t) for n, t in call.tensors.items() if t is not None and n in needs
    }
    if "initial_state" in needs and dlast is not None:
        found["initial_state"] = dlast.clone()
    return found
