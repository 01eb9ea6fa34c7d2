"""What the portable kernels serve, for the plugins that register them; imports no toolchain.

A family is one module of host code around its kernels; a row is one contract that it serves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from fla_core.domain import AxisRange, Domain, Presence
from fla_core.plugins import Implementation

DTYPES = ("float16", "bfloat16", "float32")
AXES = {"K": AxisRange(1, 256), "V": AxisRange(1, 512)}
STATES = ("varlen", "initial_state", "final_state")
POOLED = ("delta", "delta_channel")
"""Families that read and write states in the slots of a pool."""
KEYS = ("l2norm", "gva")
GATE = ("gate", "A_log", "dt_bias")
STRENGTH = ("beta_sigmoid", "neg_eigval")
BY_STEPS = ("gk", "gv", "beta_v")
"""What delta rules take token by token alone; ``gv`` is that in GLA too."""
CHUNK = "chunk"
"""Variant of what serves a contract with gradients."""

COMPILED_ONLY = "compiled for the chip, never run on it"
"""What plugins say of chips where nothing of theirs was run."""


@dataclass(frozen=True, slots=True)
class Row:
    """One contract as a family serves it.

    Attributes:
        contract: its name.
        family: module of ``fla_triton`` whose ``Kernels`` compute it.
        features: features taken as they are; the core lowers the others or refuses them.
        required: features without which the family cannot serve.
        revision: contract revision it was written for.
        dtypes: of q, k and v.
        variant: tells it from others of the contract.
        backward: whether it has gradients.
        forms: of calls that it serves best.
    """

    contract: str
    family: str
    features: tuple[str, ...] = STATES
    required: tuple[str, ...] = ()
    revision: int = 1
    dtypes: tuple[str, ...] = DTYPES
    variant: str = CHUNK
    backward: bool = True
    forms: tuple[str, ...] = ("chunk", "recurrent", "parallel")

    @property
    def title(self) -> str:
        """``"kda"``, or ``"kda#states"`` of what serves it besides."""
        return self.contract if self.variant == CHUNK else f"{self.contract}#{self.variant}"

    @property
    def returns_states(self) -> bool:
        """Whether it returns the state before each chunk, as decoding and captured calls do not."""
        return "states" in self.required

    @property
    def knows_pools(self) -> bool:
        """Whether it reads and writes states in the slots of a pool."""
        return self.family in POOLED and not self.returns_states

    def domain(self) -> Domain:
        """The subset of the contract's domain that is accepted without help."""
        presence: dict[str, Presence] = dict.fromkeys(self.features, "optional")
        presence |= dict.fromkeys(self.required, "required")
        return Domain(dtypes=self.dtypes, axes=AXES, features=presence)


ROWS = (
    Row("simple_gla", "scalar_decay", (*STATES, "g", "g_gamma")),
    Row("linear_attn", "scalar_decay"),
    Row("gla", "channel_decay", required=("gk",)),
    Row("delta_rule", "delta", (*STATES, "l2norm"), required=("beta",)),
    Row("gated_delta_rule", "delta", (*STATES, "g", *KEYS, *GATE, *STRENGTH), ("beta",)),
    Row("kda", "delta_channel", (*STATES, *KEYS, *GATE, "lower_bound", *STRENGTH)),
    Row("gdn2", "delta_channel", (*STATES, *KEYS, *GATE, "lower_bound")),
)

KEPT = partial(Row, family="delta_channel", required=("states",), variant="states", backward=False)

STEPS = partial(Row, variant="steps", backward=False, forms=("recurrent",))

FORWARD_ONLY = (
    STEPS("gla", "channel_decay", (*STATES, "gk"), ("gv",)),
    STEPS("delta_rule", "delta", (*STATES, "l2norm"), ("beta", "beta_v")),
    STEPS("gated_delta_rule", "delta", (*STATES, "g", *BY_STEPS, *KEYS), ("beta",)),
    STEPS("kda", "delta_channel", (*STATES, *KEYS, *GATE, "lower_bound"), ("beta_v",)),
    KEPT("kda", features=(*STATES, *KEYS, *GATE, "lower_bound", *STRENGTH)),
    KEPT("gdn2", features=(*STATES, *KEYS, *GATE, "lower_bound")),
)
"""What the same families serve besides, without gradients: gates and strengths that chunks do not
take, token by token however many there are, and the state before each chunk."""

SERVED = (*ROWS, *FORWARD_ONLY)
"""In the order in which they are asked."""

NORMALISED = Row(
    "linear_attn", "scalar_decay", (*STATES, "initial_z"), ("normalize",), dtypes=("bfloat16",)
)
"""What a backend may declare besides. Float16 is left to core, which widens it: gradients of
numerators would leave its range."""


def implementations(
    module: str,
    arch: tuple[str, ...],
    claims: tuple[str, ...] = (),
    rows: tuple[Row, ...] = ROWS,
) -> Iterator[Implementation]:
    """Yield an implementation for each row.

    Args:
        module: module of the backend that holds a ``Served`` under each family's name.
        arch: patterns of the architectures it runs on.
        claims: what holds on those devices beside ``"deterministic"``, which holds on all.
        rows: what is served.
    """
    for row in rows:
        yield Implementation(
            contract=row.contract,
            revision=row.revision,
            variant=row.variant,
            forward=f"{module}:{row.family}.forward",
            backward=f"{module}:{row.family}.backward" if row.backward else None,
            domain=row.domain(),
            forms=row.forms,
            arch=arch,
            claims=frozenset({"deterministic", *(() if row.returns_states else claims)}),
            pooled=f"{module}:{row.family}.pooled" if row.knows_pools else None,
        )
