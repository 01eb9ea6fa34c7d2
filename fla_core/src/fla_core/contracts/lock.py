"""The lock on contracts: a contract that changes its meaning must raise its revision.

``contracts.lock.json`` holds revision and digest of each contract. Run as
``python -m fla_core.contracts.lock`` to check, with ``--write`` to accept changes; writing is
refused where a digest changed under an unchanged revision.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from fla_core.contract import Contract
from fla_core.contracts import CONTRACTS

LOCK_FILE = Path(__file__).with_name("contracts.lock.json")


class Entry(TypedDict):
    """What the lock holds of one contract."""

    revision: int
    digest: str


Lock = Mapping[str, Entry]


def current(contracts: Mapping[str, Contract] = CONTRACTS) -> dict[str, Entry]:
    """The lock as it should be for these contracts."""
    return {
        name: {"revision": contract.revision, "digest": contract.digest()}
        for name, contract in sorted(contracts.items())
    }


def read(path: Path = LOCK_FILE) -> Lock:
    """The lock as it is; empty before it was first written."""
    if not path.exists():
        return {}
    lock: Lock = json.loads(path.read_text(encoding="utf-8"))
    return lock


def violations(now: Lock, locked: Lock) -> list[str]:
    """Changes that break the rule; none of these may be written."""
    found = []
    for name, old in locked.items():
        if (new := now.get(name)) is None:
            found.append(f"{name}: the contract is gone; plugins still name it")
        elif new["revision"] < old["revision"]:
            found.append(f"{name}: revision went back from {old['revision']} to {new['revision']}")
        elif new["digest"] != old["digest"] and new["revision"] == old["revision"]:
            found.append(
                f"{name}: its meaning changed, its revision is still {old['revision']};"
                f" raise it to {old['revision'] + 1}"
            )
    return found


def check(contracts: Mapping[str, Contract] = CONTRACTS, path: Path = LOCK_FILE) -> list[str]:
    """Everything in which the contracts and the lock disagree; empty when all is well."""
    now, locked = current(contracts), read(path)
    found = violations(now, locked)
    blamed = {text.partition(":")[0] for text in found}
    found += [
        f"{name}: not locked yet; run python -m fla_core.contracts.lock --write"
        for name in now
        if name not in blamed and now[name] != locked.get(name)
    ]
    return found


def main(
    arguments: Sequence[str],
    contracts: Mapping[str, Contract] = CONTRACTS,
    path: Path = LOCK_FILE,
) -> int:
    """Check, or write with ``--write``; the exit status is 1 when something is wrong."""
    if unknown := [argument for argument in arguments if argument != "--write"]:
        sys.stderr.write(f"unknown argument {unknown[0]!r}; there is only --write\n")
        return 2
    writing = "--write" in arguments
    now = current(contracts)
    found = violations(now, read(path)) if writing else check(contracts, path)
    for text in found:
        sys.stderr.write(f"{text}\n")
    if writing and not found:
        path.write_text(json.dumps(now, indent=2) + "\n", encoding="utf-8")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
