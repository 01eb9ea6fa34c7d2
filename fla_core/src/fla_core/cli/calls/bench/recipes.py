"""The ways to call an operator that are worth timing, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fla_core.cli.calls.problem import base_inputs
from fla_core.contracts import public_names
from fla_core.errors import ContractError

KEYWORDS = {
    "final_state": "output_final_state",
    "l2norm": "use_qk_l2norm_in_kernel",
    "gate": "use_gate_in_kernel",
    "beta_sigmoid": "use_beta_sigmoid_in_kernel",
    "neg_eigval": "allow_neg_eigval",
    "normalize": "normalize",
    "reverse": "reverse",
    "state_v_first": "state_v_first",
}
"""What public operators call the switches of their contracts."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to call an operator.

    Attributes:
        operator: public name.
        variant: told after the name, ``""`` for the plain call.
        inputs: optional tensors of the contract that are given.
        flags: switches of the contract that are on.
        options: float arguments.
        keywords: what the public operator is told beside tensors, switches and options.
        packs: whether there are packed sequences.
    """

    operator: str
    variant: str = ""
    inputs: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()
    options: Mapping[str, float] = field(default_factory=dict)
    keywords: Mapping[str, Any] = field(default_factory=dict)
    packs: bool = True

    @property
    def title(self) -> str:
        """``chunk_kda:gate``."""
        return f"{self.operator}:{self.variant}" if self.variant else self.operator


_PLAIN_KEYWORDS: Mapping[str, Mapping[str, Any]] = {
    # A layer in the middle of a network; the last one's heads do not decay.
    "chunk_lightning_attn": {"layer_idx": 11, "num_layers": 24},
    "fused_recurrent_lightning_attn": {"layer_idx": 11, "num_layers": 24},
    # On by default in the public operators.
    "chunk_linear_attn": {"normalize": False},
    "fused_chunk_linear_attn": {"normalize": False},
    "fused_recurrent_linear_attn": {"normalize": False},
}

_VARIANTS: Mapping[str, tuple[Recipe, ...]] = {
    "chunk_linear_attn": (
        Recipe("chunk_linear_attn", "normalize", flags=frozenset({"normalize"})),
    ),
    "chunk_gated_delta_rule": (
        Recipe("chunk_gated_delta_rule", "l2norm", ("g", "beta"), frozenset({"l2norm"})),
    ),
    "chunk_kda": (
        Recipe(
            "chunk_kda",
            "gate",
            ("g", "beta", "A_log", "dt_bias"),
            frozenset({"gate", "lower_bound"}),
            {"lower_bound": -5.0},
            {"safe_gate": True},
        ),
    ),
}


def recipes(operator: str) -> tuple[Recipe, ...]:
    """The plain call of a public operator, then its variants."""
    contract, _ = public_names()[operator]
    given = tuple(name for name in base_inputs(operator, contract) if name != "initial_state")
    plain = Recipe(operator, inputs=given, keywords=_PLAIN_KEYWORDS.get(operator, {}))
    return (plain, *_VARIANTS.get(operator, ()))


def find(operator: str, variant: str) -> tuple[Recipe, ...]:
    """The recipes meant by ``OP:VARIANT``: the plain one for ``""``, all for ``"*"``.

    Raises:
        ContractError: the operator has no such variant.
    """
    known = recipes(operator)
    if variant == "*":
        return known
    found = tuple(recipe for recipe in known if recipe.variant == variant)
    if not found:
        listed = ", ".join(f"'{recipe.variant}'" for recipe in known if recipe.variant)
        raise ContractError(operator, "variant", f"'*', {listed}".rstrip(", "), repr(variant))
    return found


def stepped(operator: str) -> Recipe:
    """The decode call of a recurrent operator: a state going in and out."""
    (plain,) = find(operator, "")
    inputs, flags = (*plain.inputs, "initial_state"), frozenset({"final_state"})
    return Recipe(operator, "decode", inputs, flags, keywords=plain.keywords, packs=False)


def implied_decay(recipe: Recipe, heads: int, like: Tensor) -> Tensor | None:
    """The log decay of each head that the name of an operator stands for; None without one.

    Retention: ``ln(1 - 2^(-5-h))``. Lightning attention: ``-(8/H) (1 - layer/layers) h``.
    """
    index = torch.arange(heads, dtype=torch.float64)
    if recipe.operator.endswith("retention"):
        decay = torch.log1p(-torch.exp2(-5 - index))
    elif recipe.operator.endswith("lightning_attn"):
        depth = recipe.keywords["layer_idx"] / recipe.keywords["num_layers"]
        decay = -8 / heads * (1 - depth) * index
    else:
        return None
    return decay.to(like.device, like.dtype)


def sizes_text(sizes: Mapping[str, int], lengths: tuple[int, ...] | None = None) -> str:
    """``B2 T8192 H16 K128 V128``, with ``N32`` for packed sequences."""
    shown = {axis: size for axis, size in sizes.items() if axis != "N"}
    if shown.get("HV") == shown.get("H"):
        shown.pop("HV", None)
    if lengths is not None:
        shown["N"] = len(lengths)
    return " ".join(f"{axis}{size}" for axis, size in shown.items())


def mixed_lengths(total: int, count: int) -> tuple[int, ...]:
    """``count`` lengths from short to eight times as long, in a fixed disorder, of a given sum.

    Raises:
        ContractError: there are fewer tokens than sequences.
    """
    if not 0 < count <= total:
        raise ContractError("bench", "varlen", f"a number of sequences in 1..{total}", str(count))
    # The golden ratio's multiples are spread evenly and in no order.
    weights = [8 ** (i * (math.sqrt(5) - 1) / 2 % 1) for i in range(1, count + 1)]
    spare, whole = total - count, sum(weights)
    lengths = [1 + int(spare * weight / whole) for weight in weights]
    lengths[-1] += total - sum(lengths)
    return tuple(lengths)
