"""Two states of the same code: figures written before, or another revision run now."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fla_core.cli.calls.bench.providers import OURS
from fla_core.cli.calls.bench.rows import SCHEMA, Row, Stored, parse, read
from fla_core.errors import ContractError, FlaError


class RevisionError(FlaError, RuntimeError):
    """The bench of another revision came to no result."""


@dataclass(frozen=True, slots=True)
class Change:
    """One of our own calls, then and now."""

    row: Row
    before_ms: float
    after_ms: float

    @property
    def ratio(self) -> float:
        """Above one is faster now."""
        return self.before_ms / self.after_ms

    def to_json(self) -> dict[str, Any]:
        """The fields as plain data."""
        call = {n: x for n, x in self.row.to_json().items() if n in _CALL}
        return {
            **call,
            "before_ms": self.before_ms,
            "after_ms": self.after_ms,
            "ratio": self.ratio,
        }


_CALL = ("operator", "variant", "shape", "lengths", "dtype", "direction")


def changes(before: Sequence[Row], after: Sequence[Row]) -> list[Change]:
    """What both have a speed of."""
    known = {row.key: row.ms for row in before if row.provider == OURS and row.ms is not None}
    return [
        Change(row, known[row.key], row.ms)
        for row in after
        if row.provider == OURS and row.ms is not None and row.key in known
    ]


def other(against: str, words: Sequence[str]) -> Stored:
    """The figures to compare with.

    Args:
        against: a file, or a git revision of the repository that the working directory is in.
        words: command line of the bench, which is run in the revision.

    Raises:
        ContractError: it is neither.
        RevisionError: the revision's bench failed.
    """
    if Path(against).suffix == ".json":
        return read(Path(against), "against")
    with _worktree(against) as folder:
        return _run(against, folder, words)


@contextmanager
def _worktree(revision: str) -> Iterator[Path]:
    commit = _git(Path.cwd(), "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if commit.returncode:
        expected = "a .json file, or a git revision of the repository in the working directory"
        raise ContractError("bench", "against", expected, repr(revision))
    with tempfile.TemporaryDirectory() as empty:
        folder = Path(empty, "revision")
        added = _git(Path.cwd(), "worktree", "add", "--detach", str(folder), commit.stdout.strip())
        if added.returncode:
            raise RevisionError(f"git worktree add: {_last(added.stderr)}")
        try:
            yield folder
        finally:
            _git(Path.cwd(), "worktree", "remove", "--force", str(folder))


def _run(revision: str, folder: Path, words: Sequence[str]) -> Stored:
    sources = sorted(str(path) for path in folder.glob("*/src"))
    path = os.pathsep.join([*sources, *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "fla_core.cli", "bench", *words, "--json"]
    run = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    try:
        data = json.loads(run.stdout)
        if data["schema"] != SCHEMA:
            raise ValueError(data["schema"])
        return parse(revision, data)
    except (ValueError, KeyError, TypeError, AttributeError):
        text = f"bench of revision {revision} ended with status {run.returncode} and no result"
        raise RevisionError(f"{text}: {_last(run.stderr or run.stdout)}") from None


def _git(where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["git", *words], cwd=where, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise RevisionError(f"comparing revisions needs git: {error}") from None


def _last(text: str) -> str:
    return text.strip().rpartition("\n")[2]
