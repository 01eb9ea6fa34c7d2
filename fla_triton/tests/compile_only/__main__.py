"""Compile every kernel for chips and judge what it takes: ``python -m compile_only ARCH ...``.

Prints a line a case as it goes, then one a kernel function and every fault; exits with status 1 if
there is a fault. Each chip has a process of its own, since kernels remember the compiler they met
first; so has each module of a chip's own kernels, and each pattern of contracts.

    --thorough           every dtype, feature and size; otherwise those of most models. Minutes a
                         contract, and up to half an hour a chip of one processor
    --dtypes NAME ..     calls of these dtypes alone; of every one with --thorough, otherwise of
                         bfloat16, unless this says it
    --report FOLDER      write what was compiled, for the table of supported hardware, after each
                         contract; what a file of the same toolchain says of others stays
    --control NAME ..    compile kernels that must be found faulty instead
    --only PATTERN ..    contracts of these names
    --kernels MODULE ..  a chip's own kernels, its ``FAMILIES``, in place of the portable ones
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from importlib import import_module
from itertools import product
from pathlib import Path

import torch

from compile_only.budget import faults
from compile_only.cases import DTYPES, Subject, cases, further, normalised, subjects
from compile_only.controls import CONTROLS
from compile_only.driver import Compiled, Skipping, pretending
from compile_only.report import Outcome, row, summary, write
from compile_only.run import answer, decode_pooled, refusal
from compile_only.targets import Target, target
from fla_conformance.case import Case
from fla_conformance.inputs import make_inputs
from fla_triton.profiles import EVERY


def outcome_of(
    subject: Subject, todo: Sequence[Case], chip: Target, made: list[Compiled], runtime: Skipping
) -> Outcome:
    """Run cases of an implementation; what is compiled meanwhile is appended to ``made``."""
    wrong: list[str] = []
    arch, launched = chip.profile.arch, runtime.launches
    kernels: dict[str, list[Compiled]] = {}
    for case in todo:
        before, known, begin = len(made), len(wrong), time.perf_counter()
        try:
            inputs = make_inputs(case)
            answer(subject, inputs, chip)
            decode_pooled(subject, inputs, chip)
        except Exception as error:
            text = " ".join(str(error).split())[:400]
            wrong.append(f"{case.id}: {type(error).__name__}: {text}")
        wrong += [f"{case.id}: {fault}" for one in made[before:] for fault in faults(one, chip)]
        kernels.setdefault(case.dtype, []).extend(made[before:])
        taken = time.perf_counter() - begin
        print(f"{arch}: {taken:6.1f} s {len(made) - before:3} kernels  {case.id}", flush=True)
        for fault in wrong[known:]:
            print(f"{arch}: {fault}", flush=True)
    # Not that none was compiled: an earlier implementation may have launched the same.
    if runtime.launches == launched:
        wrong.append(f"{subject.row.title}: no kernel was launched")
    return Outcome(subject.row, tuple(todo), kernels, tuple(wrong))


def each(archs: Sequence[str], modules: Sequence[str], patterns: Sequence[str]) -> int:
    """A process for each chip, module and pattern, as many at once as there are processors."""
    named = {*archs, *modules, *patterns, "--kernels", "--only"}
    others = [word for word in sys.argv[1:] if word not in named]

    def compiled_for(job: tuple[str, str, str]) -> int:
        """Pass on the lines of cases as they come, and what follows them in one piece."""
        arch, module, pattern = job
        own = ("--kernels", module) if module else ()
        command = [sys.executable, "-m", "compile_only", arch, *others, "--only", pattern, *own]
        with tempfile.TemporaryFile("w+") as said:
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as child:
                assert child.stdout is not None
                rest = ""
                for line in child.stdout:
                    if line.startswith(f"{arch}: "):
                        print(line, end="", flush=True)
                    else:
                        rest += line
            said.seek(0)
            # What a compiler says of its own failures is long; the end tells which it was.
            print(rest + (said.read()[-2000:] if child.returncode else ""), flush=True)
        return child.returncode

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return int(any(list(pool.map(compiled_for, product(archs, modules or [""], patterns)))))


def main() -> int:
    """Compile, judge, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archs", nargs="+", choices=EVERY, metavar="ARCH")
    parser.add_argument("--thorough", action="store_true")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, metavar="NAME")
    parser.add_argument("--control", nargs="+", default=(), choices=CONTROLS)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN")
    parser.add_argument("--kernels", nargs="+", default=(), metavar="MODULE")
    options = parser.parse_args()
    if options.report is not None and not options.report.is_dir():
        parser.error(f"--report: expected a folder that exists, got {options.report}")
    if options.report is not None and len(options.only) > 1:
        parser.error(f"--report: expected one pattern of contracts, got {' '.join(options.only)}")
    if max(map(len, (options.archs, options.kernels, options.only))) > 1:
        return each(options.archs, options.kernels, options.only)
    torch.set_num_threads(1)
    chip = target(options.archs[0])
    begin = time.perf_counter()
    if options.control:
        wrong = [f"{name}: {text}" for name in options.control for text in CONTROLS[name](chip)]
    else:
        own = import_module(options.kernels[0]).FAMILIES if options.kernels else None
        besides = normalised(own) if own else further()
        every = [*subjects(own), *besides]
        chosen = [one for one in every if fnmatchcase(one.row.title, options.only[0])]
        for one in list(chosen):
            if why := refusal(one, chip):
                chosen.remove(one)
                print(f"{one.row.title} is refused: {why}")
        dtypes = options.dtypes or (DTYPES if options.thorough else DTYPES[:1])
        made: list[Compiled] = []
        outcomes, runtime = [], Skipping()
        with pretending(chip, made.append, runtime):
            for one in chosen:
                todo = cases(one, options.thorough, dtypes)
                outcomes.append(outcome_of(one, todo, chip, made, runtime))
                if options.report is not None:
                    _write(options.report, chip, outcomes[-1])
        wrong = [fault for outcome in outcomes for fault in outcome.faults]
        wrong += [] if outcomes else ["nothing was compiled"]
        seconds = time.perf_counter() - begin
        print(summary(chip, outcomes, seconds))
    for fault in wrong:
        print(fault)
    return 1 if wrong else 0


def _write(folder: Path, chip: Target, outcome: Outcome) -> None:
    toolchain = ("triton-xpu" if chip.backend == "xpu" else "triton", "torch")
    file, what = folder / f"compiled-{chip.profile.arch}.json", (chip.backend, chip.profile.arch)
    write(file, "compiled", what, [row(outcome)], toolchain)


if __name__ == "__main__":
    sys.exit(main())
