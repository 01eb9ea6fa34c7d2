"""Operators by name or glob."""

from __future__ import annotations

from fnmatch import fnmatchcase

from fla_core.contract import Contract
from fla_core.contracts import CONTRACTS, public_names
from fla_core.dispatch.explain import find_operator


def public_matching(pattern: str) -> list[str]:
    """Public names that a glob over names, contracts or ``contract.name`` stands for, in order.

    Raises:
        UnknownOperatorError: nothing matches; names the closest.
    """
    found = [
        name
        for name, (contract, _) in public_names().items()
        if any(fnmatchcase(n, pattern) for n in (name, contract.name, f"{contract.name}.{name}"))
    ]
    if not found:
        found = [public_name(pattern)]
    return found


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
