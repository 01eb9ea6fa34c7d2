"""Every operator contract, one file a family."""

from __future__ import annotations

from functools import cache

from fla_core.contract import Contract
from fla_core.contracts.delta_rule import DELTA_RULE
from fla_core.contracts.gated_delta_rule import GATED_DELTA_RULE
from fla_core.contracts.gdn2 import GDN2
from fla_core.contracts.gla import GLA
from fla_core.contracts.kda import KDA
from fla_core.contracts.linear_attn import LINEAR_ATTN
from fla_core.contracts.simple_gla import SIMPLE_GLA

CONTRACTS: dict[str, Contract] = {
    contract.name: contract
    for contract in (LINEAR_ATTN, SIMPLE_GLA, GLA, DELTA_RULE, GATED_DELTA_RULE, KDA, GDN2)
}


@cache
def public_names() -> dict[str, tuple[Contract, str]]:
    """Map each public operator name to its contract and form."""
    return {
        name: (contract, form) for contract in CONTRACTS.values() for name, form in contract.public
    }


__all__ = [
    "CONTRACTS",
    "DELTA_RULE",
    "GATED_DELTA_RULE",
    "GDN2",
    "GLA",
    "KDA",
    "LINEAR_ATTN",
    "SIMPLE_GLA",
    "public_names",
]
