"""Operators by name or glob."""

from __future__ import annotations

from fnmatch import fnmatchcase

from fla_core.contract import Contract
from fla_core.contracts import CONTRACTS, public_names
from fla_core.dispatch.explain import find_operator
from fla_core.dispatch.policy import operator_names


def public_matching(pattern: str) -> list[str]:
    """Public names that a glob, as in a policy, stands for, in order; each once.

    A second name is the same function, so it stands for the first.

    Raises:
        UnknownOperatorError: nothing matches; names the closest.
    """
    found = [
        dict(contract.aliases).get(name, name)
        for name, (contract, _) in public_names().items()
        if any(fnmatchcase(spelling, pattern) for spelling in operator_names(contract.name, name))
    ]
    return list(dict.fromkeys(found)) or [public_name(pattern)]


def public_name(text: str) -> str:
    """The public name meant by ``chunk_kda``, ``kda.chunk_kda`` or ``kda`` (its first name).

    Raises:
        UnknownOperatorError: there is no such operator; names the closest.
    """
    contract, name, _ = find_operator(text)
    return contract.public[0][0] if name == contract.name else name


def contracts_matching(pattern: str) -> dict[str, Contract]:
    """Contracts that one of the matching public names belongs to, by name."""
    wanted = {public_names()[name][0].name for name in public_matching(pattern)}
    return {name: contract for name, contract in CONTRACTS.items() if name in wanted}
