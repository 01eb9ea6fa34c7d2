"""Check the plugin against the float64 recurrence on this GPU, then time what is right.

    python check_and_time.py [--ops GLOB ...] [--variant chunk] [--budget ci|full|none|NUMBER]
        [--workers 14] [--anyway]
        [--shapes main long wide small varlen prefill gva2 gva4] [--decode]
        [--profile] [--proofs lengths repeat capture memcheck] [--limit 600] [--json FILE]

Processes share out the compiling of what is timed and the definitions that it will be compared
with, then the suite's grid of forward and backward cases of every implementation that the plugin
declares. Only contracts whose cases all passed go on: to the proofs, one process an operator, and
to the clock. The clock is that of ``fla-kernels bench``, which checks the timed call itself once
more. torch's softmax attention at the first dense shape comes first. FILE is written again after
each row, so that a run that is ended keeps those it has.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import memcheck
import torch
from calls import SHAPES, anchors, chosen, narrowed, timed_calls
from grid_share import GOLDS, RESULTS

from fla_core.cli.calls.bench.anchor import Anchor
from fla_core.cli.calls.bench.golds import Golds
from fla_core.cli.calls.bench.providers import provider
from fla_core.cli.calls.bench.rows import Row, document, machine
from fla_core.cli.calls.bench.runner import Bench, step
from fla_core.cli.calls.bench.workload import Workload

HERE = Path(__file__).parent
SHOWN = 60
"""Lines of a failed proof that are shown; of others the last few."""

Running = subprocess.Popen[str]
Judge = Callable[[int, str], str]
"""From a process's exit status and output to what is wrong with it, ``""`` if nothing."""


def check(options: argparse.Namespace, contracts: Iterable[str], folder: Path) -> dict[str, bool]:
    """Compile, evaluate and check in parallel; whether all cases of each contract passed."""
    start = time.perf_counter()
    file = folder / RESULTS
    file.touch()
    (folder / GOLDS).mkdir()
    asked = {
        "plugin": options.plugin,
        "variant": options.variant,
        "device": options.device,
        "ops": options.ops,
        "budget": options.budget,
        "shapes": options.shapes,
        "decode": options.decode,
        "folder": str(folder),
    }
    command = [sys.executable, str(HERE / "grid_share.py"), json.dumps(asked)]
    workers = [subprocess.Popen(command) for _ in range(options.workers)]
    codes = [worker.wait() for worker in workers]
    results = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for worker, code in enumerate(codes):
        if code:
            print(f"worker {worker} ended with {code}; its share is incomplete")
    by_contract = defaultdict(list)
    for result in results:
        by_contract[result["contract"]].append(result)
    green = {}
    for contract in contracts:
        found = by_contract[contract]
        wrong = [r for r in found if r["outcome"] != "pass"]
        for r in wrong[: options.failures]:
            print(f"  {r['outcome']:16} {r['id']} {r['detail']}")
        worst = max((r["margin"] for r in found), default=0.0)
        passed = len(found) - len(wrong)
        print(f"{contract:18} {passed}/{len(found)} pass, worst margin {worst:.2f}")
        enough = bool(found) or options.budget == "none"
        green[contract] = enough and not wrong and not any(codes)
    print(f"checked in {time.perf_counter() - start:.0f} s", flush=True)
    return green


def prove(options: argparse.Namespace, contracts: Iterable[str]) -> bool:
    """Run the proofs side by side, a process for each contract; True when all hold."""
    end = time.monotonic() + options.limit
    wanted = [name for name in options.proofs if name != "memcheck"]
    checker = memcheck.sanitizer() if "memcheck" in options.proofs else None
    held = "memcheck" not in options.proofs or checker is not None
    if not held:
        print(f"memcheck: {memcheck.NAME} is neither in PATH nor beside a toolkit nor in a wheel")
    with tempfile.TemporaryDirectory() as folder:
        running = [
            (_proof(options, contract, wanted, Path(folder, contract)), _fault)
            for contract in contracts
            if wanted
        ]
        if checker is not None:
            running += _watched(options, contracts, checker, Path(folder, "odd"), end)
        for process, judge in running:
            text, late = ended(process, end - time.monotonic())
            trouble = late or judge(process.returncode, text)
            lines = text.splitlines()
            print("\n".join(lines if trouble and len(lines) < SHOWN else lines[-12:]))
            if trouble:
                print(f"  {trouble}", flush=True)
                held = False
    return held


def _proof(
    options: argparse.Namespace,
    contract: str,
    names: Iterable[str],
    cache: Path,
    checker: str | None = None,
) -> Running:
    """Start the proofs of a contract, watched if there is a checker."""
    command = [sys.executable, str(HERE / "proofs.py"), contract, "--device", options.device]
    command += ["--plugin", options.plugin, "--variant", options.variant]
    command += ["--only", ",".join(names)]
    environment = {"TRITON_CACHE_DIR": str(cache)}
    if checker is None:
        return _started(command, environment)
    return _started(memcheck.watched(checker, command), {**environment, **memcheck.ENVIRONMENT})


def _watched(
    options: argparse.Namespace, contracts: Iterable[str], checker: str, cache: Path, end: float
) -> list[tuple[Running, Judge]]:
    """Start odd shapes under the checker, and the planted fault that it must find.

    What runs there is compiled before: compilers are child processes, which it watches too.
    """
    compiling = [_proof(options, contract, ["odd"], cache) for contract in contracts]
    for process in compiling:
        ended(process, end - time.monotonic())  # what fails fails again under the checker
    stray = memcheck.watched(checker, [sys.executable, str(HERE / "stray.py")])
    control = (_started(stray, memcheck.ENVIRONMENT), memcheck.control_fault)
    odd = [
        (_proof(options, contract, ["odd"], cache, checker), memcheck.fault)
        for contract in contracts
    ]
    return [control, *odd]


def ended(process: Running, seconds: float) -> tuple[str, str]:
    """Wait for a proof: what it printed, and that it was ended with all it had started if late."""
    try:
        return process.communicate(timeout=max(seconds, 0.0))[0], ""
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0], "did not end in time and was ended"


def _fault(status: int, text: str) -> str:
    return f"ended with {status}" if status else ""


def _started(command: list[str], more: Mapping[str, str]) -> Running:
    return subprocess.Popen(
        command,
        env={**os.environ, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # a group of its own, to be ended whole
    )


def timed(options: argparse.Namespace, contracts: Iterable[str], golds: Golds) -> Iterator[Row]:
    """Time every call of the contracts and print a line each, that of the anchor first."""
    bench = Bench(torch.device(options.device), golds=golds)
    ours = provider("ours", options.plugin)
    print(f"{'operator':30} {'shape':28} {'':6} {'ms':>8} {'graph':>7} {'host us':>7} {'MiB':>6}")
    listed = timed_calls(contracts, options.shapes, options.decode, torch.bfloat16)
    for workload, direction in anchors(listed):
        row = bench.run(workload, Anchor(), direction)
        _print(row)
        yield row
    for workload, direction in listed:
        row = bench.run(workload, ours, direction)
        _print(row)
        yield row
        if options.profile and row.status == "ok":
            profile(workload, direction, bench.device, options.plugin)


def _print(row: Row) -> None:
    figures = (row.ms, row.graph_ms, row.host_us, row.peak_mib)
    forms = ("{:8.3f}", "{:7.3f}", "{:7.0f}", "{:6.0f}")
    told = " ".join(
        " " * len(form.format(0.0)) if x is None else form.format(x)
        for form, x in zip(forms, figures, strict=True)
    )
    worst = max(row.errors.values(), default=0.0)
    trouble = row.text.splitlines()[0][:160] if row.text else ""
    head = f"{row.title:30} {row.shape_text:28} {row.direction:6}"
    status = "" if row.status == "ok" else f"{row.status}: {trouble}"
    ran = row.implementation.partition(":")[2]
    print(f"{head} {told}  off by {worst:.2f} {ran} {status}".rstrip(), flush=True)


def profile(
    workload: Workload, direction: str, device: torch.device, plugin: str, runs: int = 5
) -> None:
    """Print what each kernel of a call takes on the device."""
    problem = workload.make(device, direction == "both")
    call = step(problem, provider("ours", plugin).bound(workload.recipe, problem))
    call()
    kind = torch.profiler.ProfilerActivity
    kinds = [kind.CPU] if device.type == "cpu" else [kind.CUDA]
    with torch.profiler.profile(activities=kinds) as seen:
        for _ in range(runs):
            call()
        if device.type != "cpu":
            torch.cuda.synchronize(device)
    on_device = device.type != "cpu"
    taken = sorted(
        (
            ((e.device_time_total if on_device else e.self_cpu_time_total) / runs, e.count, e.key)
            for e in seen.key_averages()
        ),
        reverse=True,
    )
    for microseconds, count, name in taken[:14]:
        print(f"      {microseconds:8.1f} us  {count / runs:4.1f}x  {name[:70]}")


def keep(options: argparse.Namespace, rows: list[Row], green: Mapping[str, bool]) -> None:
    """Write what there is in place of what there was, whole at any moment."""
    if options.json is not None:
        told = document(rows, machine(torch.device(options.device)), checked=green)
        being_written = options.json.with_suffix(".part")
        being_written.write_text(json.dumps(told, indent=1), encoding="utf-8")
        being_written.replace(options.json)


def main() -> int:
    """Check, prove, time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", nargs="+", default=["*"])
    parser.add_argument("--plugin", default="cuda")
    parser.add_argument("--variant", default="", help="time only these implementations")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--budget", default="ci", help="of the grid, or none")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--failures", type=int, default=12, help="shown for each contract")
    parser.add_argument("--shapes", nargs="*", default=["main"], choices=[*SHAPES, "all"])
    parser.add_argument("--proofs", nargs="*", default=[])
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for the proofs")
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--profile", action="store_true", help="device time of each kernel")
    parser.add_argument("--anyway", action="store_true", help="time what did not pass the grid too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if "all" in options.shapes:
        options.shapes = list(SHAPES)
    with narrowed(options.plugin, options.variant):
        return run(options, parser)


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """What is asked for, on the implementations that are left; 0 when all is well."""
    found = chosen(options.plugin, options.device, options.ops)
    contracts = list(dict.fromkeys(target.declaration.contract for target in found))
    if not contracts:
        parser.error(f"--ops {' '.join(options.ops)}: {options.plugin} declares no such operator")
    with tempfile.TemporaryDirectory() as folder:
        green = check(options, contracts, Path(folder))
        going = [contract for contract in contracts if green[contract] or options.anyway]
        held = prove(options, going) if options.proofs else True
        rows = list[Row]()
        keep(options, rows, green)
        if options.shapes or options.decode:
            for row in timed(options, going, Golds(Path(folder, GOLDS))):
                rows.append(row)
                keep(options, rows, green)
    if left := [contract for contract in contracts if contract not in going]:
        print(f"neither proven nor timed, since a case did not pass: {', '.join(left)}")
    right = all(green.values()) and held and all(row.status == "ok" for row in rows)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
