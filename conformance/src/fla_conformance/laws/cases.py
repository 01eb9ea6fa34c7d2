"""The calls laws are checked on: small, and within what an implementation declares."""

from __future__ import annotations

from collections.abc import Iterator

from fla_conformance.case import Case
from fla_conformance.fitting import DTYPES, Fitting
from fla_conformance.laws.law import Law
from fla_conformance.reach import fits, forms_of, optional, required
from fla_conformance.sense import contradiction, features_of
from fla_core.contract import Contract
from fla_core.plugins.api import Implementation

_TOKENS = {"chunk": 67, "recurrent": 19}
"""A chunk of 64 and an odd rest; a recurrence has no chunks to cross."""
_LONG = {"chunk": 600, "recurrent": 150}
"""Enough for kernels to share one sequence out in time, where it is that which may go wrong."""
_LENGTHS = {"chunk": (5, 0, 33, 29), "recurrent": (5, 0, 1, 13)}

_BASE = ("g", "gk", "beta", "initial_state", "final_state")
_RICH = (
    "gv",
    "beta_v",
    "g_gamma",
    "gate",
    "A_log",
    "dt_bias",
    "beta_sigmoid",
    "neg_eigval",
    "l2norm",
    "normalize",
    "initial_z",
    "gva",
    "state_v_first",
    "reverse",
)
_DERIVED = frozenset({"varlen", "gva"})


def cases_for(
    law: Law, contract: Contract, implementation: Implementation, budget: str | int = "ci"
) -> list[Case]:
    """The cases of one law for one implementation, in a fixed order.

    The first dtype that is served meets a dense batch, packed sequences, a call with every feature
    there is and, of some laws, a long one; other dtypes meet the first of these that the law speaks
    of, or with the budget ``full`` all. A number takes the first case of each dtype first, like the
    grid. Empty when the law does not concern the implementation.
    """
    served = implementation.domain.dtypes
    dtypes = [name for name in DTYPES if name in served] or list(served)
    firsts: list[Case] = []
    others: list[Case] = []
    for dtype in dtypes:
        found = list(_configurations(law, contract, implementation, dtype))
        firsts += found[:1]
        others += found[1:] if dtype == dtypes[0] or budget == "full" else ()
    chosen = list({case.id: case for case in (*firsts, *others)}.values())
    return chosen[:budget] if isinstance(budget, int) else chosen


def _configurations(
    law: Law, contract: Contract, implementation: Implementation, dtype: str
) -> Iterator[Case]:
    forms = [form for form in implementation.forms if form in forms_of(contract.name)]
    form = forms[0] if forms else forms_of(contract.name)[0]
    kind = "recurrent" if form == "recurrent" else "chunk"
    served = optional(contract, implementation.domain, dtype)
    usable = frozenset(served) - law.avoids
    seen = set()
    kinds = [(False, False), (True, False), (False, True)]
    for packed, rich, long in [*((*kind, False) for kind in kinds), (False, False, law.long)]:
        names = [*_BASE, *law.needs, *(_RICH if rich else ())]
        tokens = (_LONG if long else _TOKENS)[kind]
        case = Case(
            contract=contract.name,
            direction=law.direction if implementation.backward else "fwd",
            dtype=dtype,
            form=form,
            sizes={
                "B": 2,
                "T": tokens,
                "H": 2,
                "HV": 2,
                "K": 16,
                "V": 8,
            },
        )
        if rich and "gva" in usable:
            case = case.but(sizes={**case.sizes, "HV": 4})
        if packed:
            lengths = _LENGTHS[kind]
            case = case.but(sizes={**case.sizes, "B": 1, "T": sum(lengths)}, lengths=lengths)
        case = _with_features(case, required(contract, implementation.domain), names, usable)
        fitted = Fitting(implementation).fit(case)
        if fitted is not None:
            fitted = fitted.but(features=features_of(fitted))
        if fitted is not None and fitted.id not in seen and _speaks(law, fitted, implementation):
            seen.add(fitted.id)
            yield fitted


def _with_features(
    case: Case, base: frozenset[str], names: list[str], usable: frozenset[str]
) -> Case:
    """Add what can be used, a gate only together with its parameters."""
    features = base | {name for name in names if name in usable - _DERIVED}
    if "gate" in features and "A_log" not in features:
        features -= {"gate", "dt_bias"}
    return case.but(features=features)


def _speaks(law: Law, case: Case, implementation: Implementation) -> bool:
    """Whether a case is one the law speaks of."""
    if law.direction == "bwd" and case.direction == "fwd" and not law.outputs_too:
        return False
    if not law.needs <= case.features or law.avoids & case.features or contradiction(case):
        return False
    if law.speaks_of is not None and not law.speaks_of(case):
        return False
    return fits(case, implementation).ok
