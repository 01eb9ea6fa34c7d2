"""Calls of public operators, and the same calls built by hand for the oracle.

A `Case` says which operator is called with which optional arguments, switches, sizes and dtypes.
From it follow random inputs, the keywords of the public operator, and the `Call` whose float64
answer is right. How a public name maps onto a contract is written down here a second time, on
purpose: nothing of ``fla_core.ops`` is used for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from fla_core import ops
from fla_core.call import Call, Hints
from fla_core.contracts import CONTRACTS
from fla_core.reference.oracle import oracle
from fla_core.seqlens import SeqLens

CONTRACT_OF = {
    "linear_attn": ("chunk_linear_attn", "fused_chunk_linear_attn", "fused_recurrent_linear_attn"),
    "simple_gla": (
        "chunk_simple_gla",
        "fused_chunk_simple_gla",
        "fused_recurrent_simple_gla",
        "parallel_simple_gla",
        "chunk_retention",
        "fused_chunk_retention",
        "fused_recurrent_retention",
        "parallel_retention",
        "chunk_lightning_attn",
        "fused_recurrent_lightning_attn",
    ),
    "gla": ("chunk_gla", "fused_chunk_gla", "fused_recurrent_gla"),
    "delta_rule": ("chunk_delta_rule", "fused_chunk_delta_rule", "fused_recurrent_delta_rule"),
    "gated_delta_rule": (
        "chunk_gated_delta_rule",
        "chunk_gdn",
        "fused_recurrent_gated_delta_rule",
        "fused_recurrent_gdn",
    ),
    "kda": ("chunk_kda", "fused_recurrent_kda"),
    "gdn2": ("chunk_gdn2", "fused_recurrent_gdn2"),
}
GROUPED = ("gated_delta_rule", "kda", "gdn2")
DELTA = ("delta_rule", *GROUPED)
CONTRACT_BY_NAME = {name: contract for contract, names in CONTRACT_OF.items() for name in names}
ALL_OPERATORS = tuple(CONTRACT_BY_NAME)

KEYWORDS = {
    "final_state": "output_final_state",
    "l2norm": "use_qk_l2norm_in_kernel",
    "gate": "use_gate_in_kernel",
    "beta_sigmoid": "use_beta_sigmoid_in_kernel",
    "neg_eigval": "allow_neg_eigval",
    "states": "return_intermediate_states",
    "reverse": "reverse",
    "normalize": "normalize",
    "state_v_first": "state_v_first",
}
#: What a gate may be at each token: ordinary, closed, open, and almost either.
LEVELS = {
    "ordinary": (None,),
    "open": (0.0,),
    "strong": (-50.0, None),
    "reset": (-1e4, 0.0, -1e-6, None),
}
LAYER, LAYERS = 1, 4


@dataclass(frozen=True, slots=True)
class Case:
    """One call.

    Attributes:
        op: public name.
        args: optional tensor arguments of the contract that are given; ``beta_v`` is a beta for
            each value channel.
        flags: switches that are on.
        lens: lengths of packed sequences, or None for a dense batch.
        gates: kind of every log gate, a key of `LEVELS`.
        dtype: of q, k and v.
        dtypes: of other arguments, float32 (or that of q, if float64) where not named.
        strided: give views with strides of their own, and gradients likewise.
    """

    op: str
    args: tuple[str, ...] = ()
    flags: tuple[str, ...] = ("final_state",)
    B: int = 2
    T: int = 21
    H: int = 2
    HV: int = 2
    K: int = 5
    V: int = 3
    lens: tuple[int, ...] | None = None
    scale: float | None = None
    gates: str = "ordinary"
    lower_bound: float | None = None
    chunk_size: int | None = None
    dtype: torch.dtype = torch.float64
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    strided: bool = False
    seed: int = 0

    @property
    def contract(self) -> str:
        return CONTRACT_BY_NAME[self.op]

    @property
    def parallel(self) -> bool:
        return self.op.startswith("parallel_")

    @property
    def value_heads(self) -> int:
        """HV, which is H where heads are not grouped."""
        return self.HV if self.contract in GROUPED else self.H

    @property
    def sizes(self) -> dict[str, int]:
        packed = self.lens is not None
        return {
            "B": 1 if packed else self.B,
            "T": sum(self.lens) if packed else self.T,
            "H": self.H,
            "HV": self.value_heads,
            "K": self.K,
            "V": self.V,
            "N": len(self.lens) if packed else self.B,
            "1": 1,
            "HV*K": self.value_heads * self.K,
        }

    @property
    def bounds(self) -> tuple[int, ...] | None:
        return None if self.lens is None else (0, *accumulate(self.lens))

    @property
    def sequences(self) -> list[tuple[int, slice]]:
        """Row and tokens of every sequence."""
        if self.bounds is None:
            return [(row, slice(0, self.T)) for row in range(self.B)]
        return [(0, slice(a, b)) for a, b in pairwise(self.bounds)]

    def dtype_of(self, name: str) -> torch.dtype:
        if name in ("q", "k", "v"):
            return self.dtype
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        return self.dtypes.get(name, wide)

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the tensors of the contract that the call has, without a fixed decay."""
        optional = {"beta" if name == "beta_v" else name for name in self.args}
        specs = CONTRACTS[self.contract].inputs
        return tuple(s.name for s in specs if not s.optional or s.name in optional)


def make_inputs(case: Case) -> dict[str, Tensor]:
    """Random tensor arguments by contract name, in their dtypes, each a leaf."""
    rng = torch.Generator().manual_seed(case.seed)
    contract, sizes = CONTRACTS[case.contract], case.sizes
    inputs = {}
    for name in case.given:
        axes = list(contract.input(name).axes)
        if name == "beta" and "beta_v" in case.args:
            axes.append("V")
        if name == "initial_state" and "state_v_first" in case.flags:
            axes[-2:] = ["V", "K"]
        values = _draw(case, name, [sizes[a] for a in axes], rng).to(case.dtype_of(name))
        inputs[name] = with_strides(values) if case.strided else values
    return inputs


def _draw(case: Case, name: str, shape: list[int], rng: torch.Generator) -> Tensor:
    x = torch.randn(shape, generator=rng, dtype=torch.float64)
    if name in ("g", "gk", "gv") and "gate" not in case.flags:
        levels = torch.tensor([math.nan if c is None else c for c in LEVELS[case.gates]])
        level = levels.double()[torch.randint(len(levels), shape, generator=rng)]
        return torch.where(level.isnan(), -x.abs(), level)
    if name == "g_gamma":
        return -x.abs()
    if name in ("b", "w") or (name == "beta" and "beta_sigmoid" not in case.flags):
        return x.sigmoid()
    if name in ("q", "k", "initial_z") and "normalize" in case.flags:
        return x.abs() + 0.1  # a normaliser near zero would amplify rounding without bound
    if name == "k" and case.contract in DELTA:
        return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-3)
    return x


def with_strides(x: Tensor) -> Tensor:
    """The same values as every other element, amid NaN, with the order of axes reversed."""
    buffer = torch.full([2 * n + 1 for n in reversed(x.shape)], math.nan, dtype=x.dtype)
    view = buffer[tuple(slice(1, None, 2) for _ in x.shape)].permute(*reversed(range(x.dim())))
    return view.copy_(x)


def fixed_decay(case: Case) -> Tensor | None:
    """The decay that retention and lightning attention bring along."""
    head = torch.arange(case.H, dtype=torch.float64)
    if "retention" in case.op:
        return (1.0 - 2.0 ** (-5.0 - head)).log()
    if "lightning" in case.op:
        return -(8.0 / case.H) * (1.0 - LAYER / LAYERS) * head
    return None


def keywords(case: Case, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """Keyword arguments of the public operator."""
    given: dict[str, Any] = dict(inputs)
    if case.op in ("chunk_gla", "fused_chunk_gla"):
        given["g"] = given.pop("gk")
    if "lightning" in case.op:
        given |= {"layer_idx": LAYER, "num_layers": LAYERS}
    if case.contract == "linear_attn" and "normalize" in case.flags:
        state, z = given.pop("initial_state", None), given.pop("initial_z", None)
        given["initial_state"] = (state, z)
    if case.contract == "linear_attn":
        given["normalize"] = "normalize" in case.flags
    given |= {KEYWORDS[flag]: True for flag in case.flags}
    if case.parallel:
        given.pop("output_final_state", None)
    for name in ("scale", "lower_bound", "chunk_size"):
        if getattr(case, name) is not None:
            given[name] = getattr(case, name)
    if case.bounds is not None:
        given["cu_seqlens"] = torch.tensor(case.bounds, dtype=torch.int32)
    return given


def outputs_of(case: Case, result: tuple[Any, ...]) -> dict[str, Tensor]:
    """Name what a public operator returned, and check that nothing else came."""
    o, state, *more = result
    outputs = {"o": o}
    if case.contract == "linear_attn" and "normalize" in case.flags:
        state, outputs["final_z"] = state
    wanted = "final_state" in case.flags and not case.parallel
    assert (state is not None) == wanted
    if wanted:
        outputs["final_state"] = state
    if "states" in case.flags:
        (outputs["states"],) = more
    else:
        assert not more
    return outputs


def public_call(case: Case, inputs: Mapping[str, Tensor], **more: Any) -> dict[str, Tensor]:
    """Outputs of the public operator by name."""
    operator = getattr(ops, case.op)
    return outputs_of(case, operator(**keywords(case, inputs) | more))


def gold_call(case: Case, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Outputs by definition; inputs are float64."""
    contract = CONTRACTS[case.contract]
    tensors: dict[str, Tensor | None] = dict.fromkeys(contract.input_names)
    tensors.update(inputs)
    decay = fixed_decay(case)
    if decay is not None:
        tensors["g_gamma"] = decay
    features = {name for name, t in tensors.items() if t is not None} | set(case.flags)
    features |= {"beta_v"} if "beta_v" in case.args else set()
    features |= {"gva"} if case.value_heads != case.H else set()
    features |= {"lower_bound"} if case.lower_bound is not None else set()
    features -= {"final_state"} if case.parallel else set()
    seqlens = None
    if case.bounds is not None:
        features.add("varlen")
        seqlens = SeqLens(torch.tensor(case.bounds), case.bounds)
    return oracle(
        Call(
            contract=contract,
            form="recurrent",
            tensors=tensors,
            scale=case.K**-0.5 if case.scale is None else case.scale,
            features=frozenset(features & set(contract.features)),
            seqlens=seqlens,
            options={"lower_bound": case.lower_bound} if contract.options else {},
            hints=Hints(chunk_size=case.chunk_size),
        )
    )
