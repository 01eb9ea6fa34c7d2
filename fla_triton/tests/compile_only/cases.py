"""Calls that make the host code launch every kernel it has, from what is declared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fla_conformance.case import Case
from fla_conformance.fitting import Fitting
from fla_conformance.sense import contradiction
from fla_core.contracts import CONTRACTS
from fla_core.plugins import Implementation
from fla_triton.declared import CHUNK, FORWARD_ONLY, NORMALISED, ROWS, Row, implementations
from fla_triton.profiles import Profile
from fla_triton.serve import Kernels

STATES = frozenset({"initial_state", "final_state"})
DERIVED = frozenset({"varlen", "gva"})
PACKED = (65, 0, 1, 130)
CHUNKED = {"B": 2, "T": 200, "H": 2}
LONG = {"B": 1, "T": 16384, "H": 1}
"""Of one head, long enough to be cut into segments on the largest chip."""
SHORT = {"B": 2, "T": 1, "H": 2}
OVERLAPPED = {"B": 1, "T": 1088, "H": 2}
"""Long enough that a chip's own kernels prepare chunks while others are passed over."""
SIZES = ((64, 64), (60, 100), (256, 256))
DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True)
class Subject:
    """One declared implementation: its row in the table, and the row as plugins register it.

    Attributes:
        row, declaration: of the portable kernels.
        kernels: host code of a chip's own that takes the place of the portable; None for that.
    """

    row: Row
    declaration: Implementation
    kernels: Callable[[Profile], Kernels] | None = None


def subjects(own: Mapping[str, Callable[[Profile], Kernels]] | None = None) -> list[Subject]:
    """Everything the portable kernels serve, or what a chip's own kernels serve in their place.

    Args:
        own: the chip's kernels, by the family whose place they take.
    """
    declared = implementations("fla_triton", ())
    pairs = list(zip(ROWS, declared, strict=True))
    if own is None:
        return [Subject(row, one) for row, one in pairs]
    return [Subject(row, one, own[row.family]) for row, one in pairs if row.family in own]


def further() -> list[Subject]:
    """What the portable kernels serve besides, without gradients."""
    declared = implementations("fla_triton", (), rows=FORWARD_ONLY)
    return [Subject(row, one) for row, one in zip(FORWARD_ONLY, declared, strict=True)]


def named(row: Row) -> dict[str, Any]:
    """What a proof is of, in its words; the variant of what serves a contract besides."""
    besides = {} if row.variant == CHUNK else {"variant": row.variant}
    return {"contract": row.contract, **besides, "revision": row.revision}


def normalised(own: Mapping[str, Callable[[Profile], Kernels]]) -> list[Subject]:
    """What a chip's own kernels serve besides, which portable kernels leave to core."""
    linear = [one for one in subjects(own) if one.row.contract == NORMALISED.contract]
    domain = NORMALISED.domain()
    return [
        replace(one, row=NORMALISED, declaration=replace(one.declaration, domain=domain))
        for one in linear
    ]


def cases(subject: Subject, thorough: bool, dtypes: Sequence[str] = DTYPES) -> list[Case]:
    """Calls of one implementation, each inside its declared domain.

    Args:
        subject: the implementation.
        thorough: every feature and size of the table; otherwise the size of most models, with
            everything that is optional switched on.
        dtypes: of the calls.
    """
    wanted = _thorough(subject) if thorough else _quick(subject)
    fitting = Fitting(subject.declaration)
    fitted = (fitting.fit(case) for case in wanted if not contradiction(case))
    found = (case for case in fitted if case is not None and case.dtype in dtypes)
    return list({case.id: case for case in found}.values())


def small_cases(subject: Subject) -> list[Case]:
    """Calls of one implementation that a CPU runs in seconds, in every dtype and layout."""
    _, everything = _features(subject)
    short = {"B": 1, "T": 3, "H": 2}
    wanted = [
        _case(subject, "float32", 16, 16, {"B": 1, "T": 40, "H": 2}, everything),
        _case(subject, "bfloat16", 30, 17, {"B": 1, "T": 40, "H": 1}, everything),
        _case(subject, "float16", 16, 32, {}, everything, lengths=(19, 0, 5)),
        _case(subject, "float32", 20, 16, short, everything, direction="fwd"),
    ]
    fitting = Fitting(subject.declaration)
    return [case for one in wanted if (case := fitting.fit(one)) is not None]


def split_case(subject: Subject) -> Case:
    """A call of one head, long enough to be cut into segments on a chip of two multiprocessors."""
    _, everything = _features(subject)
    case = _case(subject, "float32", 16, 16, {"B": 1, "T": 200, "H": 1}, everything)
    fitted = Fitting(subject.declaration).fit(case)
    assert fitted is not None
    return fitted


def wide_case(subject: Subject) -> Case:
    """A short call of more key channels than every chip holds at once."""
    _, everything = _features(subject)
    case = _case(subject, "float32", 200, 24, {"B": 1, "T": 40, "H": 1}, everything)
    fitted = Fitting(subject.declaration).fit(case)
    assert fitted is not None
    return fitted


def usual_case(subject: Subject) -> Case:
    """A call of the size of most models, of two chunks and some more tokens."""
    _, everything = _features(subject)
    case = _case(subject, "bfloat16", 128, 128, {"B": 1, "T": 140, "H": 1}, everything)
    fitted = Fitting(subject.declaration).fit(case)
    assert fitted is not None
    return fitted


def _quick(subject: Subject) -> Iterator[Case]:
    _, everything = _features(subject)
    for dtype in DTYPES:
        yield _case(subject, dtype, 128, 128, CHUNKED, everything)
        yield _case(subject, dtype, 128, 128, SHORT, everything, direction="fwd")
        if subject.kernels is not None and subject.row.contract == "gated_delta_rule":
            # Raw q and k are prepared by a launch of their own.
            yield _case(subject, dtype, 128, 128, OVERLAPPED, STATES | {"beta", "g"})


def _thorough(subject: Subject) -> Iterator[Case]:
    required, everything = _features(subject)
    sets = [required, *(required | STATES | {one} for one in sorted(everything - STATES))]
    yield from _quick(subject)
    for dtype in ("float32", "float16"):
        yield _case(subject, dtype, 64, 64, CHUNKED, everything)
    for features in sets:
        yield _case(subject, "bfloat16", 128, 128, CHUNKED, features)
        yield _case(subject, "bfloat16", 128, 128, SHORT, features, direction="fwd")
    if subject.row.title == "kda#states":
        yield _case(subject, "bfloat16", 128, 128, CHUNKED, everything).but(chunk_size=32)
    for keys, values in SIZES:
        yield _case(subject, "bfloat16", keys, values, CHUNKED, everything)
    yield _case(subject, "bfloat16", 128, 128, LONG, everything)
    yield _case(subject, "bfloat16", 128, 128, {}, everything, lengths=PACKED)
    # Kernels of float32 take longest: what those of bfloat16 show of sizes is not repeated.
    yield _case(subject, "float32", 128, 128, LONG, everything)
    yield _case(subject, "float32", 256, 256, CHUNKED, everything)
    yield _case(subject, "float32", 60, 100, {}, everything, lengths=PACKED)


def _features(subject: Subject) -> tuple[frozenset[str], frozenset[str]]:
    """Features that must be there, and all that may be."""
    required = frozenset(subject.row.required)
    return required, (required | frozenset(subject.row.features)) - DERIVED


def _case(
    subject: Subject,
    dtype: str,
    keys: int,
    values: int,
    sizes: dict[str, int],
    features: frozenset[str],
    lengths: tuple[int, ...] | None = None,
    direction: str = "bwd",
) -> Case:
    contract = CONTRACTS[subject.row.contract]
    if lengths is not None:
        sizes = {"B": 1, "T": sum(lengths), "H": 2}
    named = {**sizes, "HV": sizes["H"], "K": keys, "V": values}
    form = contract.public[0][1]
    options = {"lower_bound": -5.0} if "lower_bound" in features else None
    if not subject.row.backward:
        direction = "fwd"
    return Case(contract.name, direction, dtype, form, named, features, lengths, options=options)
