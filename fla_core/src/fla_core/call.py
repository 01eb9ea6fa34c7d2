"""One normalised call, as an implementation receives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from fla_core.contract import Contract
    from fla_core.seqlens import SeqLens


@dataclass(frozen=True, slots=True)
class Hints:
    """Wishes of the caller that change speed or memory, never the function computed.

    Attributes:
        chunk_size: preferred chunk length; it also fixes the granularity of intermediate states.
        recompute: recompute in backward rather than keep intermediates.
        safe_gate: the caller promises that every log gate lies in [-5, 0).
    """

    chunk_size: int | None = None
    recompute: bool = True
    safe_gate: bool = False


NO_HINTS = Hints()


@dataclass(slots=True)  # not frozen: that costs 1 of the 8 microseconds a call may take
class Call:
    """Arguments of one call, checked and normalised; treat it as frozen.

    Tensor arguments are read as attributes by their contract names (``call.q``, ``call.beta``);
    an absent one is None.

    Attributes:
        contract: what is computed.
        form: the form the public name asked for.
        tensors: tensor arguments by name, in contract order.
        scale: factor on q, never None.
        features: features in use.
        seqlens: packed sequences, or None for a dense batch.
        options: further float arguments by name (``lower_bound``).
        hints: wishes.
        memo: for the implementation alone, to keep what follows from the signature of a call:
            operator, device, features, options, hints, wanted gradients, and presence, shape and
            dtype of each tensor. Later calls of the signature find it again; scale, strides,
            addresses and boundaries may differ between them. A copy of a call starts with none.
    """

    contract: Contract
    form: str
    tensors: Mapping[str, Tensor | None]
    scale: float
    features: frozenset[str]
    seqlens: SeqLens | None = None
    options: Mapping[str, float | None] = field(default_factory=dict)
    hints: Hints = NO_HINTS
    memo: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "tensors":  # copying asks before there are any tensors
            raise AttributeError(name)
        try:
            return self.tensors[name]
        except KeyError:
            raise AttributeError(
                f"{self.contract.name} has no argument {name!r}; it has {', '.join(self.tensors)}"
            ) from None

    def get(self, name: str) -> Tensor | None:
        """The tensor of that name; None when it is absent or the contract has no such argument."""
        return self.tensors.get(name)

    def but(self, **tensors: Tensor | None) -> Call:
        """A copy with some tensors replaced."""
        return self.holding({**self.tensors, **tensors})

    def holding(self, tensors: Mapping[str, Tensor | None]) -> Call:
        """A copy with other tensors."""
        # dataclasses.replace takes ten times as long.
        return Call(
            self.contract,
            self.form,
            tensors,
            self.scale,
            self.features,
            self.seqlens,
            self.options,
            self.hints,
        )

    @property
    def bounds(self) -> tuple[int, ...] | None:
        """Boundaries of packed sequences on the host; None for a dense batch."""
        return None if self.seqlens is None else self.seqlens.bounds

    @property
    def num_sequences(self) -> int:
        """N: number of packed sequences, or the batch size of a dense call."""
        return int(self.q.shape[0]) if self.seqlens is None else self.seqlens.count
