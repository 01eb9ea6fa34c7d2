"""One child process for each implementation, so that a crash or a hang becomes a row.

An illegal memory access leaves a device context unusable, and a signal ends the process: neither
may cost the results of other checks. A child takes its orders as JSON on stdin and writes JSON
lines; when it dies in a check, that check is a crash and another child goes on behind it.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from fla_conformance.card import TIMEOUT, child_environment, ending
from fla_conformance.gold import gold
from fla_conformance.report.rows import from_row, to_row
from fla_conformance.result import Outcome, Result
from fla_conformance.session import Prepared, Request, load_here
from fla_conformance.stream import Key
from fla_conformance.suite import Climb, Task, execute

ERROR_LINES = 12
"""Last lines of a dead child's stderr that are kept in its row."""


@dataclass(frozen=True, slots=True)
class _End:
    """How a child ended: in words, and whether it was stopped for being silent."""

    text: str
    silent: bool = False


def run_isolated(
    prepared: Prepared,
    remaining: Sequence[Task],
    begin: Callable[[Key], object],
    end: Callable[[Result], object],
) -> Iterator[Result]:
    """Carry out tasks in child processes; yields every result, also of those that died."""
    for _, group in groupby(remaining, key=lambda task: task.implementation):
        for result in _one_implementation(prepared, list(group), begin):
            end(result)
            yield result


def _one_implementation(
    prepared: Prepared, todo: list[Task], begin: Callable[[Key], object]
) -> Iterator[Result]:
    while todo:
        by_key = {task.key: task for task in todo}
        current: Task | None = None
        child = _Child(prepared, [task.key for task in todo])
        for message in child.messages(prepared.request.timeout):
            if "begin" in message:
                current = by_key[_key(message["begin"])]
                begin(current.key)
            elif "row" in message:
                result = from_row(message["row"])
                del by_key[result.implementation, result.level, result.id]
                current = None
                yield result
            elif "done" in message:
                child.close()
                return  # what is left was passed over on purpose
        fate = child.end()
        todo = list(by_key.values())
        if current is None and todo and len(todo) == len(child.keys):
            yield from _never_started(prepared, todo, fate)
            return
        if current is not None:
            todo.remove(current)
            yield _fate(prepared, current, fate)


def _fate(prepared: Prepared, task: Task, fate: _End) -> Result:
    outcome = Outcome.TIMEOUT if fate.silent else Outcome.CRASH
    return prepared.settings.expectations.judge(task.result(outcome, fate.text))


def _never_started(prepared: Prepared, todo: list[Task], fate: _End) -> Iterator[Result]:
    """A child that dies before its first check would do so for ever."""
    yield _fate(prepared, todo[0], fate)
    text = f"not run: {fate.text}"
    yield from (task.result(Outcome.NOT_EXECUTED, text) for task in todo[1:])


class _Child:
    """A child process and its stream of messages; ``patience`` is how long it may be silent."""

    def __init__(self, prepared: Prepared, keys: list[Key]) -> None:
        self.keys = keys
        self.patience = 0.0
        # Open for as long as the child lives.
        self._errors: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fla_conformance.isolate"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=child_environment(),
        )
        orders = {
            "request": {**asdict(prepared.request), "op": keys[0][0]},
            "device": prepared.device,
            "keys": keys,
        }
        assert self._process.stdin is not None
        # One that is dead already does not listen; its stream will end and say so.
        with suppress(BrokenPipeError), self._process.stdin as pipe:
            json.dump(orders, pipe, default=str)

    def messages(self, silence: float) -> Iterator[dict[str, Any]]:
        """Lines of the child until it ends or falls silent.

        Before the first one it imports torch and the plugin, which the time for a check is not for.
        """
        lines: queue.Queue[str | None] = queue.Queue()

        def read() -> None:
            assert self._process.stdout is not None
            with self._process.stdout as stream:
                for line in stream:
                    lines.put(line)
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        self.patience = max(silence, TIMEOUT)
        try:
            while (line := lines.get(timeout=self.patience)) is not None:
                self.patience = silence
                if line.endswith("\n"):  # the last one of a child that died may be cut
                    yield json.loads(line)
        except queue.Empty:
            return
        except GeneratorExit:
            raise
        except BaseException:
            self.kill()
            raise
        self._process.wait()

    def end(self) -> _End:
        """How it ended; one that still runs is stopped."""
        if self._process.poll() is None:
            self.kill()
            return _End(f"no answer within {self.patience:g} s", silent=True)
        self._errors.seek(0)
        errors = self._errors.read()
        self.close()
        last = "\n".join(errors.strip().splitlines()[-ERROR_LINES:])
        first = ending(self._process.returncode, "")
        return _End(f"{first}\n{last}".rstrip())

    def kill(self) -> None:
        """Stop it."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Forget its output."""
        self._process.wait()
        self._errors.close()


def _key(parts: Sequence[str]) -> Key:
    implementation, level, name = parts
    return implementation, level, name


def main() -> None:
    """The child: carry out the tasks named on stdin."""
    say = _channel()
    orders = json.load(sys.stdin)
    given = orders["request"]
    paths = {name: Path(given[name]) if given[name] else None for name in ("case", "expect")}
    request = Request(**{**given, **paths, "argv": tuple(given["argv"])})
    prepared = load_here(request, orders["device"])
    known = {task.key: task for task in prepared.tasks}
    climb = Climb(request.climb)
    ordered = [known[_key(parts)] for parts in orders["keys"]]
    _warm(ordered)
    for task in ordered:
        if climb.passes_over(task):
            continue
        say({"begin": list(task.key)})
        result = execute(task, prepared.settings.expectations)
        climb.saw(result)
        say({"row": to_row(result)})
    say({"done": True})
    sys.stdout.flush()
    # A thread or an exit handler of the plugin's cannot hold up the end.
    os._exit(0)


def _warm(ordered: Sequence[Task]) -> None:
    """Compute gold once, which imports half of torch: the first check's time is not for that."""
    case = next((task.case for task in ordered if task.case and not task.law), None)
    if case is not None:
        gold(case)


def _channel() -> Callable[[dict[str, Any]], None]:
    """Keep the real stdout for the protocol; what plugins print goes to stderr."""
    lines = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        lines.write(json.dumps(message, ensure_ascii=False) + "\n")

    return say


if __name__ == "__main__":
    main()
