"""One run of the suite against one plugin, from the plugin's name to its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fla_conformance import card, suite
from fla_conformance.case import Case
from fla_conformance.cases import read_case
from fla_conformance.device import AdapterError
from fla_conformance.expect import FILE_NAME, Expectations, load
from fla_conformance.levels import up_to
from fla_conformance.report import Report
from fla_conformance.report.header import distributions, header
from fla_conformance.result import Outcome, Result
from fla_conformance.selectors import Surroundings
from fla_conformance.stream import Key, Past, Stream
from fla_conformance.suite import Climb, Settings, Task, execute, matching, tasks
from fla_core.dispatch.runtime import RUNTIME
from fla_core.errors import FlaError
from fla_core.plugins.record import PluginRecord


class RunError(FlaError, ValueError):
    """The run that was asked for cannot be made."""


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for.

    Attributes:
        plugin: its name.
        op: glob over contracts, public names and implementation ids.
        device: ``"cuda:0"``, ``""`` for the first that the plugin's card names.
        level: the highest level.
        budget: ``"ci"``, ``"full"`` or a number of cases.
        seed: of random cases.
        only: run these checks alone: an id or a glob over ids.
        case: run the case in this file alone.
        expect: file of expectations, None for the plugin's own.
        isolated: one child process for each implementation.
        timeout: seconds one check may take in a child process.
        climb: leave out the levels above one that failed.
        argv: the command, for the record.
    """

    plugin: str
    op: str = "*"
    device: str = ""
    level: str = "L3"
    budget: str | int = "ci"
    seed: int = 0
    only: str = ""
    case: Path | None = None
    expect: Path | None = None
    isolated: bool = False
    timeout: float = 300.0
    climb: bool = False
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        up_to(self.level)
        if self.budget not in suite.BUDGETS and not (
            isinstance(self.budget, int) and self.budget > 0
        ):
            raise RunError(f"budget must be ci, full or a positive number, got {self.budget!r}")


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything about a run that is known before its first check.

    Attributes:
        request: what was asked for.
        record: the plugin.
        device: where.
        arch: architecture of the device.
        settings: for the sources of checks.
        tasks: what is to be done; empty when the plugin cannot be used.
        early: results that exist already: the checks of the plugin as a whole.
    """

    request: Request
    record: PluginRecord
    device: str
    arch: str
    settings: Settings
    tasks: tuple[Task, ...]
    early: tuple[Result, ...] = ()

    @property
    def header(self) -> dict[str, Any]:
        """The head of the report."""
        asked = self.request
        selection = {
            "op": asked.op,
            "level": asked.level,
            "budget": str(asked.budget),
            "only": asked.only or (asked.case.name if asked.case else ""),
            "seed": asked.seed,
            "isolated": asked.isolated,
        }
        return header(self.record, self.device, self.arch, selection, asked.argv)

    @property
    def problems(self) -> list[str]:
        """Entries of the expectations file that have expired or select nothing."""
        entries = self.settings.expectations
        if not entries.entries or not self.record.implementations:
            return []
        # Whether an entry selects anything must not depend on how this run was narrowed.
        whole = replace(self.settings, level="L4", budget="full")
        concerned = [
            target
            for target in _targets(self.record.name, self.device)
            if any(entry.concerns(target.implementation) for entry in entries.entries)
        ]
        return entries.problems(date.today(), tasks(concerned, whole))


def find_plugin(name: str) -> PluginRecord:
    """The record of an installed plugin, not yet loaded.

    Raises:
        RunError: there is none of that name.
    """
    record = RUNTIME.registry.get(name)
    if record is None:
        known = ", ".join(RUNTIME.registry.names)
        raise RunError(f"there is no plugin {name!r}; installed are {known}")
    return record


def folder_of(record: PluginRecord) -> Path | None:
    """The package that the plugin's module lies in; None for a module of its own."""
    package = record.target.partition(":")[0].rpartition(".")[0]
    try:
        spec = find_spec(package) if package else None
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def prepare(request: Request) -> Prepared:
    """Look at the plugin in fresh interpreters, then load it here and list what is to be done.

    Raises:
        RunError: there is no such plugin, or no operator matches.
        ExpectationError: the expectations file is not valid.
    """
    record = find_plugin(request.plugin)
    device = request.device or card.first_device(record)
    whole_plugin = request.only.startswith("plugin/")
    narrowed = request.case or (request.only and not whole_plugin)
    early = tuple(card.plugin_results(record, device)) if not narrowed else ()
    usable = all(row.outcome is Outcome.PASS for row in early)
    try:
        if usable and not whole_plugin:
            return replace(load_here(request, device), early=early)
        if usable:
            _targets(request.plugin, device)
    except AdapterError as error:
        row = Result("plugin/device", record.name, "L0", Outcome.FAIL_LAW, detail=str(error))
        early = (*early, replace(row, law="device"))
    settings = Settings(request.level, request.budget, request.seed)
    return Prepared(request, record, device, "", settings, (), early)


def load_here(request: Request, device: str) -> Prepared:
    """Load the plugin in this process and list what is to be done."""
    found = _targets(request.plugin, device)
    record = find_plugin(request.plugin)
    arch = found[0].arch if found else ""
    folder = folder_of(record)
    file = request.expect or (folder / FILE_NAME if folder else None)
    if request.expect and not request.expect.exists():
        raise RunError(f"there is no expectations file {request.expect}")
    here = Surroundings(arch, device, distributions(record))
    expectations = load(file, here) if file else Expectations()
    settings = Settings(request.level, request.budget, request.seed, folder, expectations)
    chosen = matching(found, request.op)
    if found and not chosen:
        names = ", ".join(sorted({target.declaration.contract for target in found}))
        raise RunError(f"no operator of {request.plugin} matches {request.op!r}; it has {names}")
    if request.case:
        listed = _tasks_of(chosen, read_case(request.case))
    else:
        listed = tasks(chosen, settings, request.only)
    if not listed and (request.only or request.case):
        raise RunError(f"no check matches {request.only or str(request.case)!r}")
    return Prepared(request, record, device, arch, settings, tuple(listed))


Listener = Callable[[Result], object]


def run(
    prepared: Prepared, path: Path | None = None, resume: bool = False, tell: Listener = id
) -> Report:
    """Carry out every task and return the report.

    Args:
        prepared: what is to be done.
        path: file of JSON lines to write, None for none.
        resume: take up the run in that file: checks that ended are not run again.
        tell: called with each result.

    Raises:
        ResumeError: there is nothing to resume, or it is another run.
    """
    started, head = time.perf_counter(), prepared.header
    past = Past(path) if resume and path else None
    if past is not None:
        past.check(head)
    died = _died(prepared, past.died) if past is not None and past.died is not None else {}
    done = {**(past.results if past else {}), **died}
    for row in (*prepared.early, *done.values()):
        tell(row)
    remaining = [task for task in prepared.tasks if task.key not in done]
    climb = Climb(prepared.request.climb)
    for row in done.values():
        climb.saw(row)
    with _Recorder(path, head, past is not None) as recorder:
        # The dead are written down too: another crash must not make this one forgotten.
        for row in (*prepared.early, *died.values()):
            recorder.end(row)
        for row in _results(prepared, remaining, recorder, climb):
            done[(row.implementation, row.level, row.id)] = row
            climb.saw(row)
            tell(row)
    missing = (task for task in prepared.tasks if task.key not in done)
    head["complete"] = all(climb.passes_over(task) for task in missing)
    head["seconds"] = round(time.perf_counter() - started, 3)
    early = {(row.implementation, row.level, row.id): row for row in prepared.early}
    return Report.of(head, {**done, **early}.values(), prepared.problems)


def _results(
    prepared: Prepared, remaining: Sequence[Task], recorder: _Recorder, climb: Climb
) -> Iterator[Result]:
    if prepared.request.isolated:
        from fla_conformance.isolate import run_isolated

        yield from run_isolated(prepared, remaining, recorder.begin, recorder.end)
        return
    for task in remaining:
        if climb.passes_over(task):
            continue
        recorder.begin(task.key)
        result = execute(task, prepared.settings.expectations)
        recorder.end(result)
        yield result


def _targets(plugin: str, device: str) -> list[Any]:
    from fla_conformance.run import targets

    return targets(plugin, device)


def _tasks_of(targets: Iterable[Any], case: Case) -> list[Task]:
    from fla_conformance.numerical import check_of

    concerned = (target for target in targets if target.declaration.contract == case.contract)
    return [Task(target, check_of(case)) for target in concerned]


def _died(prepared: Prepared, key: Key) -> dict[Key, Result]:
    """The row of a check that ended the process of the run that is being resumed."""
    text = "the process ended, or was killed, while this check ran"
    expectations = prepared.settings.expectations
    return {
        task.key: expectations.judge(task.result(Outcome.CRASH, text))
        for task in prepared.tasks
        if task.key == key
    }


class _Recorder:
    """A stream, or nothing where no file was asked for."""

    def __init__(self, path: Path | None, head: dict[str, Any], append: bool) -> None:
        self._stream = None
        if path is not None:
            self._stream = Stream.append(path) if append else Stream.new(path, head)

    def begin(self, key: Key) -> None:
        if self._stream:
            self._stream.begin(key)

    def end(self, result: Result) -> None:
        if self._stream:
            self._stream.end(result)

    def __enter__(self) -> _Recorder:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._stream:
            self._stream.__exit__(*error)


__all__ = ["Prepared", "Request", "RunError", "find_plugin", "prepare", "run"]
