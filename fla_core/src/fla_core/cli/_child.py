"""Runs :mod:`._inspect` in a child process and survives whatever happens to it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

SILENCE = 120.0
"""Seconds without a line after which a child is taken to hang; importing torch may take 60."""


@dataclass(slots=True)
class Inspection:
    """What children found.

    Attributes:
        torch: version and build of torch, or ``error``.
        devices: devices torch sees.
        plugins: findings by index of the record.
        crashes: index of a record to how the child ended in it.
        failure: how the child ended outside any plugin; ``""`` when it did not.
    """

    torch: dict[str, Any] = field(default_factory=dict)
    devices: list[dict[str, str]] = field(default_factory=list)
    plugins: dict[int, dict[str, Any]] = field(default_factory=dict)
    crashes: dict[int, str] = field(default_factory=dict)
    failure: str = ""


def inspect_plugins(silence: float = SILENCE) -> Inspection:
    """Inspect every plugin; a child that dies in one is replaced by one that leaves it out."""
    found = Inspection()
    while True:
        skip = {*found.plugins, *found.crashes}
        doing, end = _run(found, sorted(skip), silence)
        if end is None:
            return found
        if "begin" not in doing:
            found.failure = f"{end} during {doing['phase']}"
            return found
        found.crashes[doing["begin"]] = f"{end} during {doing['phase']}"


def _run(found: Inspection, skip: list[int], silence: float) -> tuple[dict[str, Any], str | None]:
    """Run one child; return what it was doing, and how it ended unless it came to its end."""
    command = [sys.executable, "-m", "fla_core.cli._inspect", *map(str, skip)]
    # The child sees the modules that this process sees, not those of the working directory.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env)
        doing: dict[str, Any] = {"phase": "start"}
        for message in _messages(child, silence):
            if "phase" in message:
                doing = message
            elif "torch" in message:
                found.torch, found.devices = message["torch"], message["devices"]
            elif "plugin" in message:
                found.plugins[message["plugin"]] = message
            elif "done" in message:
                child.wait()
                return doing, None
        return doing, _ending(child, errors, silence)


def _messages(child: subprocess.Popen[str], silence: float) -> Iterator[dict[str, Any]]:
    """Lines of the child until it ends or falls silent."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert child.stdout is not None
        with child.stdout as stream:
            for line in stream:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=silence)
        except queue.Empty:
            return
        if line is None:
            child.wait()
            return
        yield json.loads(line)


def _ending(child: subprocess.Popen[str], errors: IO[str], silence: float) -> str:
    if child.poll() is None:
        child.kill()
        child.wait()
        return f"no answer within {silence:g} s"
    code = child.returncode
    if code < 0:
        return f"the process died of {signal.Signals(-code).name}"
    errors.seek(0)
    last = errors.read().strip().rpartition("\n")[2]
    return f"the process ended with status {code}" + (f" ({last})" if last else "")
