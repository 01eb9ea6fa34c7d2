"""What is right, and how far anybody may be from it who stores the inputs in their dtypes.

Gold is the token recurrence in float64 on the inputs as they were rounded, with its gradients. It
runs again on inputs multiplied by ``1 + u xi``, xi uniform in [-1, 1] and u half a unit in the last
place of the input's dtype; how far that moves gold is the *spread*, and with it the unit::

    unit(S) = max( rms_S(spread),  u_out rms_S(gold) )

An error that is the same factor everywhere has a unit of its own: :mod:`fla_conformance.gains`.

An argument of fewer bits than q (a gate in bfloat16 beside float32) is exact in q's dtype, and is
moved as little as that; beside float64 as little as float32, in which gates are then computed.

Of numbers below what q's dtype flushes to zero nothing relative is asked, whatever their own dtype:
products have factors of q's dtype, and decays among them. Behind a reset, gradients of an initial
state are such numbers in float16.

Inputs are moved by no less than ``sqrt(2 n)`` half units in the last place of the accumulator, n
the terms of the sums over tokens, key channels and value channels, each multiplied and added: where
inputs are as precise as the sums (float32), it is their roundings that show. Under 16 bits they
never do. Where torch may round float32 factors to TensorFloat32, so does this.

A row's limit is never below that of its block: no single row must be better than the block need be
on average. Otherwise gradients that vanish for a reason of structure (of a gate of -1e4, of a query
that its own normaliser cancels) and rows of one number, whose spread may be small by chance, would
ask for more digits than arithmetic has.

Nor is a block of few rows held to more than its rows are, where a row is a sum over all tokens (of
a state) or one number (of a token's gate). One of them may stray as far as the budget of a row lets
it; of n rows it alone makes the block that far over sqrt(n). Errors of one number, over a unit of
eight, are spread like Student's t: of a hundred and more sequences of one token, some would be
beyond four units whoever computes them. Other blocks of tokens have as many rows as their sums have
terms, and many numbers in each.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import vmap

from fla_conformance.blocks import Layout
from fla_conformance.case import Case
from fla_conformance.gains import gain_unit
from fla_conformance.inputs import Inputs, make_inputs
from fla_conformance.sense import contradiction
from fla_core.call import Call
from fla_core.contract import Numerics
from fla_core.dtypes import multiplies_exactly
from fla_core.reference.oracle import oracle

PERTURBATIONS = 8
"""Enough that a block which moves as one, such as the gradients of gates under long memory, is not
by chance measured with a short rule: of |t| with 3 degrees of freedom 2.8 % lie beyond 4, with 8
0.4 %."""

TOKEN_BY_TOKEN = 1024
"""Longest call of which gold is computed token by token."""

Named = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Unit:
    """What an error is measured in: for each block, for each row, and as a factor of it all."""

    block: Tensor
    row: Tensor
    gain: float


@dataclass(frozen=True, slots=True)
class Gold:
    """What is right, in float64 on the CPU.

    Attributes:
        values: outputs by name, and gradients as ``dq``.
        units: unit of each.
        layouts: blocks and rows of each.
    """

    values: Mapping[str, Tensor]
    units: Mapping[str, Unit]
    layouts: Mapping[str, Layout]


def gradient_name(name: str) -> str:
    """``"dq"`` for the gradient of ``q``."""
    return f"d{name}"


def half_ulp(dtype: torch.dtype) -> float:
    """Largest relative error of rounding to a dtype."""
    return torch.finfo(dtype).eps / 2


_HALF_ULP_TF32 = 2.0**-11


def _exact() -> bool:
    """Whether float32 is multiplied exactly wherever a case may run."""
    return all(multiplies_exactly(torch.device(kind)) for kind in ("cpu", "cuda"))


def _least_move(inputs: Inputs) -> float:
    """What accumulating costs even where the inputs are exact."""
    case = inputs.case
    if case.dtype == "float32" and not _exact():
        return _HALF_ULP_TF32
    longest = max(case.lengths, default=0) if case.lengths is not None else case.sizes["T"]
    terms = longest + case.sizes["K"] + case.sizes["V"]
    accumulator = getattr(torch, case.definition.numerics.accumulate)
    if case.dtype == "float64":
        accumulator = torch.float64
    return math.sqrt(2 * terms) * half_ulp(accumulator)


_SIZE = 256
_cache: OrderedDict[str, Gold] = OrderedDict()


def gold(case: Case) -> Gold:
    """Gold and units of a case; the last 256 are kept, so that siblings share them."""
    key = f"{case.id} {_exact()}"
    found = _cache.pop(key, None)
    if found is None:
        found = gold_of(make_inputs(case), case.key)
        if len(_cache) >= _SIZE:
            _cache.popitem(last=False)
    _cache[key] = found
    return found


@torch.enable_grad()
def gold_of(inputs: Inputs, seed: int = 0) -> Gold:
    """Gold and units of any inputs; gradients too when ``inputs.grads`` is not empty.

    Calls longer than 1024 tokens use the chunked reference in float64 through dispatch: it is the
    same function to 1e-10, which a test certifies at every feature of the grid; what only the
    recurrence serves (gates and strengths of value channels) stays token by token.
    """
    tensors = {name: t.detach().cpu() for name, t in inputs.present.items()}
    incoming = {name: t.detach().cpu() for name, t in inputs.grads.items()}
    exact = {name: t.double() for name, t in tensors.items()}
    seeds = {name: t.double() for name, t in incoming.items()}
    runs = [(exact, seeds)]
    generator = torch.Generator().manual_seed(seed)
    least = _least_move(inputs)

    own = half_ulp(tensors["q"].dtype)
    wide = tensors["q"].dtype == torch.float64
    finest = least * half_ulp(torch.float32) / half_ulp(torch.float64) if wide else own

    def moved(given: Named) -> Named:
        steps = {name: max(min(half_ulp(t.dtype), finest), least) for name, t in given.items()}
        return {name: _moved(t, steps[name], generator) for name, t in given.items()}

    runs += [(moved(tensors), moved(incoming)) for _ in range(PERTURBATIONS)]
    evaluate = _by_chunks if _is_long(inputs) else _by_token
    variants = evaluate(_on_host(inputs), runs)
    dtypes = {**_output_dtypes(inputs), **{gradient_name(n): t.dtype for n, t in tensors.items()}}
    unwanted = {gradient_name(name) for name in tensors.keys() - set(inputs.wanted)}
    variants = {name: x for name, x in variants.items() if name not in unwanted}
    values = {name: x[0] for name, x in variants.items()}
    packed = inputs.cu_seqlens
    bounds = None if packed is None else tuple(packed.tolist())
    layouts = {name: Layout(inputs.letters(name), bounds) for name in values}
    budget = inputs.case.definition.numerics
    units = {
        name: _unit(
            x[0],
            x[1:] - x[0],
            layouts[name],
            dtypes[name],
            budget,
            max(own, least),
            max(smallest(dtypes[name]), smallest(tensors["q"].dtype)),
        )
        for name, x in variants.items()
    }
    return Gold(values, units, layouts)


def _moved(tensor: Tensor, step: float, generator: torch.Generator) -> Tensor:
    x = tensor.double()
    xi = 2 * torch.rand(x.shape, generator=generator, dtype=x.dtype) - 1
    return x * (1 + step * xi)


def _is_long(inputs: Inputs) -> bool:
    return inputs.case.sizes["T"] > TOKEN_BY_TOKEN and not inputs.features & {"gv", "beta_v"}


def _on_host(inputs: Inputs) -> Inputs:
    packed = inputs.cu_seqlens
    return replace(inputs, cu_seqlens=None if packed is None else packed.cpu())


def _output_dtypes(inputs: Inputs) -> dict[str, torch.dtype]:
    q = inputs.present["q"].dtype
    state = torch.float64 if q == torch.float64 else torch.float32
    outputs = inputs.case.definition.outputs_for(inputs.features)
    return {spec.name: state if spec.dtype == "state" else q for spec in outputs}


Run = tuple[Named, Named]
Mean = Callable[[Tensor], Tensor]


def _by_token(inputs: Inputs, runs: list[Run]) -> Named:
    """All runs at once: the recurrence's cost is Python's, not arithmetic's."""
    tensors = {name: torch.stack([run[0][name] for run in runs]) for name in runs[0][0]}
    if runs[0][1]:
        tensors = {name: t.requires_grad_() for name, t in tensors.items()}
    names = list(tensors)
    absent = dict.fromkeys(inputs.tensors)

    def run(*given: Tensor) -> Named:
        call: Call = inputs.call_with({**absent, **dict(zip(names, given, strict=True))})
        return oracle(call)

    outputs = vmap(run)(*tensors.values())
    if not runs[0][1]:
        return dict(outputs)
    incoming = {name: torch.stack([run[1][name] for run in runs]) for name in runs[0][1]}
    return _with_gradients(outputs, tensors, incoming)


def _by_chunks(inputs: Inputs, runs: list[Run]) -> Named:
    found = []
    chunked = inputs.case.but(form="chunk")
    if not contradiction(chunked):  # the form changes speed, tenfold, and no value
        inputs = replace(inputs, case=chunked)
    for tensors, incoming in runs:
        leaves = {name: t.requires_grad_(bool(incoming)) for name, t in tensors.items()}
        outputs = inputs.run(leaves, backend="reference")
        found.append(_with_gradients(outputs, leaves, incoming) if incoming else outputs)
    return {name: torch.stack([run[name] for run in found]) for name in found[0]}


def _with_gradients(outputs: Named, leaves: Named, incoming: Named) -> Named:
    pairs = [(out, incoming[name]) for name, out in outputs.items() if out.requires_grad]
    roots, seeds = [out for out, _ in pairs], [seed for _, seed in pairs]
    gradients = torch.autograd.grad(roots, list(leaves.values()), seeds, allow_unused=True)
    found = {name: out.detach() for name, out in outputs.items()}
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        found[gradient_name(name)] = torch.zeros_like(leaf) if gradient is None else gradient
    return found


def _unit(
    value: Tensor,
    moves: Tensor,
    layout: Layout,
    dtype: torch.dtype,
    budget: Numerics,
    step: float,
    least: float,
) -> Unit:
    value, moves = (torch.where(x.isfinite(), x, 0.0) for x in (value, moves))
    squares = moves.square().mean(0)

    def unit(mean: Mean) -> Tensor:
        rounding = half_ulp(dtype) * mean(value.square()).sqrt()
        return torch.maximum(mean(squares).sqrt(), rounding).clamp_min(least)

    block, row = unit(layout.block_mean), unit(layout.row_mean)
    limit = layout.to_rows(block, row) * (budget.block / budget.token)
    few = (budget.token / budget.block) / layout.few_rows(value).sqrt()
    block = block * few.clamp_min(1.0).nan_to_num(1.0, 1.0)
    as_factor = gain_unit(value, moves, block, layout, max(step, half_ulp(dtype)), least)
    return Unit(block, torch.maximum(row, limit), as_factor)


def smallest(dtype: torch.dtype) -> float:
    """What a dtype may flush to zero: no relative error is asked for below that."""
    info = torch.finfo(dtype)
    return info.smallest_normal * (info.eps / 2 if dtype == torch.float16 else 1.0)
