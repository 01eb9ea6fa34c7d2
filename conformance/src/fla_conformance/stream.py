"""Results as JSON lines while a run goes on, so that a crash loses nothing and a run can resume.

The first line is the report's header. ``{"begin": [implementation, level, id]}`` precedes every
check and a row follows it; a check that began and has no row is one that ended the process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from fla_conformance.report.rows import from_row, to_row
from fla_conformance.result import Result
from fla_core.errors import FlaError

Key = tuple[str, str, str]

_SAME = ("suite", "plugin", "host", "dists", "selection")
"""Parts of the header that must agree for a run to be one."""


class ResumeError(FlaError, ValueError):
    """A run cannot be taken up from this file."""


class Stream:
    """A file of JSON lines that is being written; every line is on disk before the next check."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    @classmethod
    def new(cls, path: Path, header: Mapping[str, Any]) -> Stream:
        """Start a file; one that is there is replaced."""
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = cls(path.open("w", encoding="utf-8"))
        stream._write({"header": header})
        return stream

    @classmethod
    def append(cls, path: Path) -> Stream:
        """Go on writing a file, behind its last whole line: a dying process may have cut one."""
        with path.open("r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
        return cls(path.open("a", encoding="utf-8"))

    def begin(self, key: Key) -> None:
        """A check is about to run."""
        self._write({"begin": list(key)})

    def end(self, result: Result) -> None:
        """A check has ended."""
        self._write({"row": to_row(result)})

    def interrupted(self) -> None:
        """The check that is running was stopped by a person, which is no fault of it."""
        self._write({"interrupted": True})

    def _write(self, message: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(message, ensure_ascii=False) + "\n")
        self._file.flush()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.interrupted()
        self._file.close()


class Past:
    """What a file says of an earlier run.

    Attributes:
        header: of that run.
        results: checks that ended, by key; of two rows for one check the later counts.
        died: the check that the process died in, None when it did not.
    """

    def __init__(self, path: Path) -> None:
        self.header: dict[str, Any] = {}
        self.results: dict[Key, Result] = {}
        self.died: Key | None = None
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ResumeError(f"there is no run to resume: {path}: {error.strerror}") from error
        for number, line in enumerate(lines, 1):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError) as error:
                if number == len(lines):
                    break  # the process died while writing it
                raise ResumeError(f"{path.name}, line {number}: {error}") from error
        if not self.header:
            raise ResumeError(f"{path.name} does not begin with the header of a run")

    def check(self, header: Mapping[str, Any]) -> None:
        """Compare with the header of the run that wants to go on.

        Raises:
            ResumeError: it is another run; names what differs.
        """
        for part in _SAME:
            old, new = self.header.get(part), header[part]
            if old != json.loads(json.dumps(new)):
                raise ResumeError(
                    f"this run cannot resume the earlier one, {part} differs:\n"
                    f"  then  {json.dumps(old)}\n  now   {json.dumps(new)}"
                )

    def _take(self, message: Mapping[str, Any]) -> None:
        if "header" in message:
            self.header = message["header"]
        elif "begin" in message:
            implementation, level, name = message["begin"]
            self.died = (implementation, level, name)
        elif "row" in message:
            result = from_row(message["row"])
            self.results[(result.implementation, result.level, result.id)] = result
            self.died = None
        elif "interrupted" in message:
            self.died = None
