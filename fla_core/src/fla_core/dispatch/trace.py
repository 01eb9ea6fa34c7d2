"""``FLA_TRACE``: what was decided and what ran, to stderr for people or to a file as JSON lines.

``decisions`` reports each new plan and each call that nobody accepts; ``calls`` also each run of a
forward or backward. With ``:PATH`` appended (``calls:/tmp/fla.jsonl``) every event is one JSON
object on a line of that file: ``{"event": "plan" | "refused" | "call", ...}``.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TextIO

from fla_core.dispatch.decision import Decision
from fla_core.errors import PolicyError


class Trace:
    """Where events go; ``level`` is ``off``, ``decisions`` or ``calls``."""

    __slots__ = ("_file", "_lock", "level")

    def __init__(self, level: str = "off", file: TextIO | None = None) -> None:
        self.level = level
        self._file = file
        self._lock = threading.Lock()

    @classmethod
    def opened(cls, level: str, path: str) -> Trace:
        """Open the file, if there is one to write.

        Raises:
            PolicyError: it cannot be opened.
        """
        if level == "off" or not path:
            return cls(level)
        try:
            return cls(level, open(path, "a", encoding="utf-8", buffering=1))
        except OSError as error:
            problem = f"cannot write to {path!r}: {error.strerror}"
            raise PolicyError(f"{level}:{path}", "FLA_TRACE", problem) from error

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
        line = json.dumps(event) if self._file is not None else f"fla: {text}"
        with self._lock:
            # sys.stderr is looked up at each line, since tests and notebooks replace it.
            (self._file or sys.stderr).write(f"{line}\n")
