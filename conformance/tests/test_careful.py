"""What a careful author arrives at on matrix units passes, with room to spare."""

from __future__ import annotations

import pytest

from fla_conformance.case import Case
from fla_conformance.grid import grid
from fla_conformance.result import Outcome
from fla_conformance.risks import LONG, MANY
from fla_conformance.run import run_case
from fla_core.contracts import CONTRACTS
from fla_core.domain import Domain
from matrix_units import kernel
from plugins_in_process import implementation, installed


def _domain(contract: str, dtype: str) -> Domain:
    takes = {"varlen", "initial_state", "final_state", "g", "gk"}
    features = dict.fromkeys(sorted(takes & {*CONTRACTS[contract].features}), "optional")
    if contract in ("delta_rule", "gated_delta_rule"):
        features["beta"] = "required"
    return Domain(dtypes=(dtype,), features=features)  # type: ignore[arg-type]


def _made(contract: str, dtype: str, chunk: int, twice: bool = True):
    forward, backward = kernel(chunk, twice)
    domain = _domain(contract, dtype)
    changes = {"forward": forward, "backward": backward, "residuals": None}
    return implementation(contract, domain=domain, **changes)


def _telling(case: Case) -> bool:
    """Long memory and parallel keys, and many short sequences."""
    trying = case.regime in ("long_memory", "parallel_keys") and case.sizes["T"] < LONG
    return trying or case.lengths == MANY


@pytest.mark.parametrize(
    ("contract", "dtype", "chunk"),
    [
        ("simple_gla", "bfloat16", 64),
        ("gla", "float16", 32),
        ("delta_rule", "bfloat16", 64),
        ("kda", "bfloat16", 32),
    ],
)
def test_careful_kernels_pass_with_room_to_spare(contract: str, dtype: str, chunk: int) -> None:
    with installed(_made(contract, dtype, chunk)) as (target,):
        everything = grid(CONTRACTS[contract], target.declaration, "L2", "ci")
        chosen = [("L2", case) for case in (*everything[:2], *filter(_telling, everything))]
        everything = grid(CONTRACTS[contract], target.declaration, "L1", "ci")
        chosen += [("L1", case) for case in everything if case.regime in ("idle", "loud")]
        assert len(chosen) > 3
        for level, case in chosen:
            result = run_case(case, target, level)
            assert result.outcome is Outcome.PASS, (case.id, result.detail)
            assert result.margin is not None
            assert result.margin.worst < 0.8, (case.id, result.margin)


def test_an_inverse_rounded_once_is_seen_where_keys_are_parallel() -> None:
    """Of its first 16 seeds, 14 fail the call by the gradient of the initial state."""
    sizes = {"B": 2, "T": 65, "H": 2, "HV": 2, "K": 16, "V": 8}
    features = frozenset({"beta", "initial_state", "final_state"})
    usual = Case("delta_rule", "bwd", "bfloat16", "chunk", sizes, features, seed=5)
    case = usual.but(regime="parallel_keys")
    for twice, outcome in ((True, Outcome.PASS), (False, Outcome.FAIL_NUMERIC)):
        with installed(_made("delta_rule", "bfloat16", 64, twice)) as (target,):
            assert run_case(case, target, "L2").outcome is outcome
