"""The configurations of the grid: each is a complete call, made for one thing that goes wrong.

There is no product of axes. Sizes change together along a diagonal, so that every size meets every
stage of a kernel once; each feature comes alone, then in the combinations that models use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fla_conformance.case import GATES
from fla_conformance.draw import LOUD, ROOM, crowded
from fla_conformance.feature_sets import SETS
from fla_core.contract import Contract

BASE: Mapping[str, tuple[str, ...]] = {
    "simple_gla": ("g",),
    "gla": ("gk",),
    "delta_rule": ("beta",),
    "gated_delta_rule": ("g", "beta"),
}
"""What an ordinary call of a contract brings beyond its required arguments."""

STATES = ("initial_state", "final_state")
DELTA = ("delta_rule", "gated_delta_rule", "kda", "gdn2")


@dataclass(frozen=True, slots=True)
class Risk:
    """A configuration, before it is fitted to an implementation.

    Attributes:
        features: beyond what lengths and sizes imply.
        sizes: where they differ from ``B2 T65 H2 HV2 K16 V8``.
        lengths: of packed sequences.
        regime, dtype, options, chunk_size, recompute, safe_gate, gate_dtype: as in a case.
        form: asked for; ``""`` is the implementation's own.
        backward: whether gradients are looked at too.
        core: part of every budget.
    """

    features: frozenset[str]
    sizes: Mapping[str, int] = field(default_factory=dict)
    lengths: tuple[int, ...] | None = None
    regime: str = "plain"
    dtype: str = "bfloat16"
    options: Mapping[str, float] | None = None
    chunk_size: int | None = None
    recompute: bool = True
    safe_gate: bool = False
    gate_dtype: str = "float32"
    form: str = ""
    backward: bool = True
    core: bool = False


DIAGONAL = (
    # T, K, V: lengths around chunks of 16, 64 and 128; head sizes off the powers of two.
    (1, 64, 64),
    (2, 8, 17),
    (15, 3, 8),
    (16, 16, 16),
    (17, 17, 60),
    (33, 1, 3),
    (63, 60, 72),
    (64, 64, 64),
    (127, 96, 100),
    (129, 100, 8),
    (64, 128, 128),
    (130, 8, 192),
    (66, 256, 8),
)
USUAL = (128, 128)
"""Head sizes of most models."""
_DTYPES = ("bfloat16", "float16", "float32")
FAR_APART = (
    (1, 64, 64),
    (15, 3, 8),
    (17, 17, 60),
    (64, 64, 64),
    (129, 100, 8),
    (64, 128, 128),
    (130, 8, 192),
    (66, 256, 8),
)
"""The part of the diagonal that every budget has."""

PACKED = (
    (17, 0, 64, 1, 47),
    (0, 65, 0),
    (1, 1, 1, 1),
    (63, 64, 2),
    (0, 0),
    (),
    (130,),
    (3, 0, 1, 7, 2, 5, 0, 4, 1, 6, 2, 9, 0, 3, 8, 1, 2) * 8,
)
MANY = PACKED[-1]
"""More sequences than a block has threads."""
BLOCKS = {"B": 3, "H": 43, "T": 20}
"""As many heads of sequences."""
LONG = 4100
"""More chunks than a tile of their states has rows, whatever the chunk."""


def risks(contract: Contract, form: str) -> Iterator[Risk]:
    """Every configuration of a contract for implementations of that form, most telling first."""
    base = frozenset((*BASE.get(contract.name, ()), *STATES))
    yield from _everyday(contract, base)
    yield from _regimes(contract, base)
    yield from _features(contract, base)
    yield from _shapes(contract, base)
    yield from _gates(contract, base)
    yield from _hints(contract, base, form)


def _everyday(contract: Contract, base: frozenset[str]) -> Iterator[Risk]:
    yield Risk(base, core=True)
    yield Risk(base, dtype="float16", core=True)
    yield Risk(base, dtype="float32", core=True)
    yield Risk(base, dtype="float64", core=True)
    yield Risk(base - {"initial_state", "final_state"}, core=True)
    yield Risk(base - {"initial_state"})
    yield Risk(base - {"final_state"})
    yield Risk(base, lengths=PACKED[0], core=True)
    yield Risk(base, lengths=PACKED[0], dtype="float32")
    yield Risk(base, lengths=PACKED[0], dtype="float64", core=True)
    yield Risk(base, lengths=PACKED[0], options={"scale": 0.4}, core=True)
    yield Risk(base - {"initial_state"}, lengths=PACKED[0])
    if "gva" in contract.features:
        yield Risk(base, {"H": 2, "HV": 4}, core=True)
        yield Risk(base, {"H": 2, "HV": 6}, core=True)
        yield Risk(base, {"H": 1, "HV": 4})
        yield Risk(base, {"B": 1, "H": 2, "HV": 4}, lengths=PACKED[3])
        yield Risk(base, {"B": 1, "H": 3, "HV": 3, "K": 17})


def _regimes(contract: Contract, base: frozenset[str]) -> Iterator[Risk]:
    named = ("long_memory", "fast_decay", "resets") if _is_gated(contract) else ()
    if contract.name in DELTA:
        named = (*named, "parallel_keys")
    for regime in named:
        yield Risk(base, {"T": 129}, regime=regime, core=True)
        yield Risk(base, regime=regime, dtype="float32", core=regime == "resets")
        yield Risk(base, regime=regime, dtype="float64")
        yield Risk(base, regime=regime, dtype="float16")
        yield Risk(base, lengths=PACKED[0], regime=regime)
    yield Risk(base, {"T": 129}, regime="idle", core=True)
    yield Risk(base, {"T": 129}, regime="idle", dtype="float16")
    if contract.name not in DELTA:  # whose keys are of unit length
        small = {"scale": LOUD**-2}
        # Backward, what is small is what flows into the scores.
        yield Risk(base, regime="loud", dtype="float16", options=small, backward=False, core=True)


def _shapes(contract: Contract, base: frozenset[str]) -> Iterator[Risk]:
    for index, (tokens, keys, values) in enumerate(DIAGONAL):
        core = (tokens, keys, values) in FAR_APART
        # A level is reached by one dtype: what is wrong in one of them only must show there.
        dtypes = {"bfloat16": None, _DTYPES[index % 3]: None}
        for sizes in _roomy(contract, tokens, keys):
            sizes.update(B=1 + index % 2, H=1 + index % 3, V=values)
            if tokens * keys * values > 100_000:
                sizes.update(B=1, H=1)
            for dtype in _DTYPES if (keys, values) == USUAL else dtypes:
                yield Risk(base, sizes, dtype=dtype, core=core)
    yield Risk(base, {"T": 0}, core=True)
    yield Risk(base, {"B": 0})
    for lengths in PACKED[1:-1]:
        yield Risk(base, lengths=lengths, core=lengths == PACKED[1])
    yield Risk(base, {"H": 1}, lengths=MANY, core=True)
    yield Risk(base, BLOCKS, core=True)
    # Memory so long that what is lost between two chunks adds up over all of them.
    regime = "long_memory" if _is_gated(contract) else "plain"
    yield Risk(base, {"B": 1, "H": 1, "T": LONG}, regime=regime, core=True)
    yield Risk(base, {"B": 1, "T": 1500})
    yield Risk(base, lengths=(1200, 0, 300))


def _roomy(contract: Contract, tokens: int, keys: int) -> Iterator[dict[str, int]]:
    """T and K; where there are too few channels, first a single token and then more channels."""
    if not crowded(contract.name, tokens, keys):
        yield {"T": tokens, "K": keys}
        return
    yield {"T": 1, "K": keys}
    yield {"T": tokens, "K": ROOM + keys}


def _is_gated(contract: Contract) -> bool:
    return contract.name not in ("linear_attn", "delta_rule")


def _gates(contract: Contract, base: frozenset[str]) -> Iterator[Risk]:
    given = {spec.name for spec in contract.inputs if not spec.optional or spec.name in base}
    if not GATES & given:
        return
    yield Risk(base, gate_dtype="bfloat16", core=True)
    yield Risk(base, lengths=PACKED[0], gate_dtype="float16")
    yield Risk(base, dtype="float32", gate_dtype="bfloat16")


def _hints(contract: Contract, base: frozenset[str], form: str) -> Iterator[Risk]:
    yield Risk(base, options={"scale": 0.4}, core=True)
    yield Risk(base, recompute=False, core=True)
    yield Risk(base, lengths=PACKED[0], recompute=False, core=True)
    if _is_gated(contract):
        yield Risk(base, safe_gate=True, core=True)
        yield Risk(base, regime="long_memory", safe_gate=True)
    if form == "chunk":
        yield Risk(base, {"T": 100}, chunk_size=64)
        yield Risk(base, {"T": 100}, chunk_size=32, core=True)
    for other in dict.fromkeys(name for _, name in contract.public):
        if other != form:
            yield Risk(base, form=other, core=other == "parallel")
            yield Risk(base, lengths=PACKED[0], form=other)


def _features(contract: Contract, base: frozenset[str]) -> Iterator[Risk]:
    for plus, minus, core in SETS.get(contract.name, ()):
        features = (base | frozenset(plus.split())) - frozenset(minus.split())
        options = {"lower_bound": -5.0} if "lower_bound" in features else None
        backward = "states" not in features
        # The chunked names of GDN take g and beta as required arguments.
        lacks = contract.name == "gated_delta_rule" and not {"g", "beta"} <= features
        form = "recurrent" if lacks else ""
        yield Risk(features, options=options, backward=backward, form=form, core=core)
        if core:
            yield Risk(
                features,
                lengths=PACKED[0],
                options=options,
                backward=backward,
                form=form,
                core=plus == "reverse",  # each sequence by itself, not the row
            )
        if "gate" in features:
            yield Risk(features, regime="resets", options=options, backward=backward)
            yield Risk(features, regime="long_memory", options=options, backward=backward)
