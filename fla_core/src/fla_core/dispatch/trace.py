"""``FLA_TRACE``: what was decided and what ran, to stderr for people or to a file as JSON lines.

``decisions`` reports each new plan and each call that nobody accepts; ``calls`` also each run of a
forward or backward. With ``:PATH`` appended (``calls:/tmp/fla.jsonl``) every event is one JSON
object on a line of that file: ``{"event": "plan" | "refused" | "call", ...}``. A file that cannot
be written to at the start is an error; later a warning says so once and calls go on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any

from fla_core.dispatch.decision import Decision
from fla_core.dispatch.once import say_once
from fla_core.errors import PolicyError


class Trace:
    """Where events go; ``level`` is ``off``, ``decisions`` or ``calls``."""

    __slots__ = ("_path", "_said", "level")

    def __init__(self, level: str = "off", path: str = "") -> None:
        self.level = level
        self._path = path
        self._said: set[Hashable] = set()

    @classmethod
    def checked(cls, level: str, path: str) -> Trace:
        """Make sure that the file, if there is one, can be written.

        Raises:
            PolicyError: it cannot.
        """
        trace = cls(level, path if level != "off" else "")
        try:
            trace._append("")
        except OSError as error:
            problem = f"cannot write to {path!r}: {error.strerror}"
            raise PolicyError(f"{level}:{path}", "FLA_TRACE", problem) from error
        return trace

    def decided(self, decision: Decision) -> None:
        """Report a new plan, or the lack of one."""
        if self.level != "off":
            event = "refused" if decision.chosen is None else "plan"
            self._write({"event": event, **decision.to_json()}, decision.render())

    def watch(self, function: Callable[..., Any], direction: str, decision: Decision) -> Any:
        """Return a function that reports each call; the function itself below level ``calls``."""
        if self.level != "calls":
            return function
        head = {"event": "call", "operator": decision.operator, "direction": direction}
        event = {**head, "plan": decision.plan}
        text = f"{decision.operator}: {direction} of {decision.plan}"

        @wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._write(event, text)
            return function(*args, **kwargs)

        return watched

    def _write(self, event: dict[str, Any], text: str) -> None:
        try:
            if self._path:
                self._append(f"{json.dumps(event)}\n")
            else:
                sys.stderr.write(f"fla: {text}\n")
        # Reporting must not fail what it reports on: a disk fills up, a stream is closed.
        except (OSError, ValueError, AttributeError) as error:
            lost = f"FLA_TRACE cannot write to {self._path or 'stderr'}: {error}; events are lost"
            say_once(self._said, "lost", lost, RuntimeWarning)

    def _append(self, text: str) -> None:
        # Opened anew for each event: nothing to close, and forked workers may share the file.
        if self._path:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(text)
