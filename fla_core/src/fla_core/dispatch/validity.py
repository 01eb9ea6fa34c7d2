"""The validity table: compiler and chip pairs known to be good, bad or not tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from fla_core.plugins.api import Validity
from fla_core.plugins.requirements import matches
from fla_core.verify import OK, Reason, Verdict


def find_row(
    rows: Sequence[Validity],
    implementation: str,
    direction: str,
    arch: str,
    versions: Mapping[str, str],
) -> Validity | None:
    """The first row that speaks of an implementation in one direction on this chip and compiler."""
    for row in rows:
        if (
            row.direction in (direction, "*")
            and fnmatchcase(implementation, row.implementation)
            and fnmatchcase(arch, row.arch or "*")
            and matches(row.toolchain, versions)
        ):
            return row
    return None


def check(
    rows: Sequence[Validity],
    implementation: str,
    directions: Sequence[str],
    arch: str,
    versions: Mapping[str, str],
) -> Verdict:
    """Refuse when a direction the call needs is denied; ``unverified`` passes with a remark."""
    remark = ""
    for direction in directions:
        row = find_row(rows, implementation, direction, arch, versions)
        if row is None or row.status == "ok":
            continue
        where = " ".join(filter(None, (arch, row.toolchain.strip("*"))))
        text = f"{direction} on {where}: {row.reason}"
        if row.status == "denied":
            return Verdict(Reason.VALIDITY, text)
        remark = f"unverified, {text}"
    return Verdict(Reason.OK, remark) if remark else OK
