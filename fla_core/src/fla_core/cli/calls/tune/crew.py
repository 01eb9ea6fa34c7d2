"""Child processes that try candidates; one that dies or hangs is replaced."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from fla_core.plugins.tuning import Measured, Task, Tiles

MODULE = "fla_core.cli.calls.tune.worker"

SILENCE = 300.0
"""Seconds without an answer after which a candidate is taken to hang: it may have to compile."""


@dataclass(frozen=True, slots=True)
class Job:
    """One candidate and what is asked of it."""

    task: Task
    tiles: Tiles
    mode: str


@dataclass(slots=True)
class Crew:
    """Processes that work side by side, as a context manager that ends them.

    Attributes:
        plugin, device, budget: what a worker is told.
        size: how many.
        deadline: no job is begun after it, in the seconds of ``time.monotonic``.
        silence: seconds a worker may take for a job.
    """

    plugin: str
    device: str
    budget: float
    size: int
    deadline: float
    silence: float = SILENCE
    workers: list[_Worker] = field(default_factory=list)

    def __enter__(self) -> Crew:
        self.workers = [_Worker(self) for _ in range(self.size)]
        return self

    def __exit__(self, *raised: object) -> None:
        for worker in self.workers:
            worker.close()

    def run(
        self, jobs: Sequence[Job], *, alone: bool = False, patient: bool = False
    ) -> list[Measured | None]:
        """Do all jobs; None for those that the deadline left undone.

        Args:
            jobs: what to do.
            alone: one after another, so that nothing disturbs the clock.
            patient: whatever the deadline.
        """
        answers: list[Measured | None] = [None] * len(jobs)
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(len(jobs)):
            waiting.put(index)

        def work(worker: _Worker) -> None:
            while patient or time.monotonic() < self.deadline:
                try:
                    index = waiting.get_nowait()
                except queue.Empty:
                    return
                answers[index] = worker.ask(index, jobs[index])

        hands = self.workers[: 1 if alone else len(jobs)]
        threads = [threading.Thread(target=work, args=(worker,)) for worker in hands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers


@dataclass(slots=True)
class _Worker:
    """One process at a time."""

    crew: Crew
    child: subprocess.Popen[str] | None = None
    errors: IO[str] | None = None
    lines: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)

    def ask(self, index: int, job: Job) -> Measured:
        """Have one candidate tried; its end is what it failed of if it takes the process along."""
        child = self._running()
        asked = {"task": job.task.to_json(), "tiles": job.tiles, "mode": job.mode}
        try:
            assert child.stdin is not None
            child.stdin.write(json.dumps({"id": index, **asked}) + "\n")
            child.stdin.flush()
        except OSError:
            return Measured(job.tiles, None, self._ending(child))
        until = time.monotonic() + self.crew.silence
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                line = ""
            if not line:
                return Measured(job.tiles, None, self._ending(child))
            answer: dict[str, Any] = json.loads(line)
            if answer.get("id") == index:
                return Measured(job.tiles, answer["ms"], answer["failure"])

    def close(self) -> None:
        """End the process."""
        if self.child is not None:
            assert self.child.stdin is not None
            self.child.stdin.close()
            self.child.kill()
            self.child.wait()
            self.child = None
        if self.errors is not None:
            self.errors.close()
            self.errors = None

    def _running(self) -> subprocess.Popen[str]:
        if self.child is not None and self.child.poll() is None:
            return self.child
        self.close()
        crew = self.crew
        command = [sys.executable, "-m", MODULE, crew.plugin, crew.device, str(crew.budget)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (see close)
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self.errors, text=True, env=env
        )
        self.lines = queue.SimpleQueue()
        threading.Thread(target=_forward, args=(self.child, self.lines), daemon=True).start()
        return self.child

    def _ending(self, child: subprocess.Popen[str]) -> str:
        try:
            code = child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.close()
            return f"no answer within {self.crew.silence:g} s"
        if code < 0:
            return f"the process died of {signal.Signals(-code).name}"
        assert self.errors is not None
        self.errors.seek(0)
        last = self.errors.read().strip().rpartition("\n")[2]
        return f"the process ended with status {code}" + (f" ({last})" if last else "")


def _forward(child: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    assert child.stdout is not None
    with child.stdout as stream:
        for line in stream:
            lines.put(line)
    lines.put("")
