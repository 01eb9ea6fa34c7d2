"""The judges of compiled kernels: they must see what a chip cannot run as it should be run."""

from __future__ import annotations

import importlib.util
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import programs

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


def compile_only(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the driver in a process of its own, as always."""
    return programs.run("compile_only", *arguments)


CONTROLS = {
    "overflow": " bytes of shared memory, ",
    "spill": " bytes a thread, 0 are allowed",
    "crowd": " registers a program, ",
}


@pytest.mark.parametrize("arch", ["sm90", "gfx942"])
def test_kernels_that_do_not_fit_are_found(arch: str) -> None:
    run = compile_only(arch, "--control", *CONTROLS)
    assert run.returncode == 1, run.stderr
    for control, said in CONTROLS.items():
        faults = [x for x in run.stdout.splitlines() if x.startswith(f"{control}: ")]
        assert any(said in fault for fault in faults), run.stdout


@pytest.fixture
def fine() -> Any:
    """A kernel in which nothing is wrong."""
    from compile_only.driver import Compiled
    from compile_only.resources import Resources

    takes = Resources(shared=1024, registers=64, stack=0, narrow_dots=2, matrix={"mma.sync": 4})
    return Compiled("chunk_outputs", "bf16", {"K": 64, "V": 64}, 4, 2, 1.0, takes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"shared": 10**6}, ["1000000 bytes of shared memory, 101376 are there"]),
        ({"stack": 10**6}, ["spills 1000000 bytes a thread"]),
        ({"registers": 255}, []),
        ({"registers": 256}, ["256 registers a lane, 255 are there"]),
        ({"matrix": {}}, ["2 products of 16-bit matrices without matrix units"]),
        ({"matrix": {}, "narrow_dots": 0}, []),
        ({"nothings": 4}, ["4 remainders of roundings that the compiler took for zero"]),
    ],
)
def test_each_fault_is_named(fine: Any, changes: dict[str, Any], said: list[str]) -> None:
    from compile_only.budget import faults
    from compile_only.targets import target

    changed = replace(fine, resources=replace(fine.resources, **changes))
    found = list(faults(changed, target("sm120")))
    assert len(found) == len(said)
    for fault, part in zip(found, said, strict=True):
        assert part in fault


def test_what_a_chip_does_not_have_is_not_used(fine: Any) -> None:
    from compile_only.budget import faults
    from compile_only.targets import target

    chip = replace(target("sm120"), absent=frozenset({"float64"}))
    takes = replace(fine.resources, used=frozenset({"float64", "block reads"}))
    (fault,) = faults(replace(fine, resources=takes), chip)
    assert fault.endswith("uses float64, which the chip does not have")


def test_only_what_is_written_down_goes_without_matrix_units(fine: Any) -> None:
    from compile_only.budget import faults
    from compile_only.targets import target
    from fla_triton.profiles import INTEL

    takes = replace(fine.resources, matrix={}, registers=0)
    for arch, expected in (("dg2", 0), ("pvc", 1), ("bmg", 1)):
        chip = replace(target("sm120"), profile=INTEL[arch])
        assert len(list(faults(replace(fine, resources=takes), chip))) == expected, arch


@pytest.mark.parametrize(
    ("arch", "registers", "warps", "said"),
    [
        ("sm90", 255, 8, []),
        ("sm90", 130, 16, ["66560 registers a program, 65536 are there"]),
        ("gfx942", 512, 4, []),
        ("gfx942", 513, 2, ["513 registers a lane, 512 are there"]),
        ("gfx942", 264, 8, ["135168 registers a program, 131072 are there"]),
        ("gfx1100", 256, 8, []),
        ("gfx1100", 257, 8, ["257 registers a lane, 256 are there"]),
        ("gfx1201", 200, 16, ["102400 registers a program, 98304 are there"]),
        ("gfx1250", 342, 8, []),
        ("gfx1250", 1032, 4, ["1032 registers a lane, 1024", "132096 registers a program, 131072"]),
        ("pvc", 0, 8, []),  # its driver allocates
    ],
)
def test_registers_are_those_of_lanes_and_of_multiprocessors(
    fine: Any, arch: str, registers: int, warps: int, said: list[str]
) -> None:
    from compile_only.budget import faults
    from compile_only.targets import target
    from fla_triton.profiles import EVERY

    chip = replace(target("sm120"), profile=EVERY[arch])
    takes = replace(fine.resources, registers=registers)
    found = list(faults(replace(fine, warps=warps, resources=takes), chip))
    assert len(found) == len(said)
    for fault, part in zip(found, said, strict=True):
        assert part in fault


@pytest.mark.parametrize(
    ("kernel", "arch", "keys", "stack", "allowed"),
    [
        ("chunk_gradients", "gfx942", 128, 1056, True),
        ("chunk_gradients", "gfx942", 128, 1152, False),
        ("chunk_gradients", "gfx942", 256, 1320, True),
        ("chunk_outputs", "gfx942", 256, 124, True),
        ("chunk_outputs", "gfx942", 256, 252, False),
        ("chunk_outputs", "gfx942", 128, 8, False),
        ("chunk_states", "gfx1100", 128, 8, False),
        ("delta_errors", "sm90", 256, 4752, True),
        ("delta_errors", "sm90", 128, 4752, False),
    ],
)
def test_float32_spills_what_was_seen_and_no_more(
    fine: Any, kernel: str, arch: str, keys: int, stack: int, allowed: bool
) -> None:
    from compile_only.budget import faults
    from compile_only.targets import target

    takes, sizes = replace(fine.resources, stack=stack), {"K": keys, "V": 128}
    spilling = replace(fine, kernel=kernel, dtype="fp32", constants=sizes, resources=takes)
    assert bool(list(faults(spilling, target(arch)))) != allowed


def test_chips_that_nobody_knows_are_refused_by_name() -> None:
    from compile_only.targets import target

    with pytest.raises(ValueError, match=r"arch: expected one of sm80, .*, dg2, got 'sm91'"):
        target("sm91")
    run = compile_only("sm90", "sm91")
    assert (run.returncode, run.stdout) == (2, "")
    assert "sm91" in run.stderr.splitlines()[-1]
    assert "gfx1250" in run.stderr.splitlines()[-1]


def test_processes_do_not_write_one_report(tmp_path: Path) -> None:
    run = compile_only("sm90", "--only", "*a", "*[!a]", "--report", str(tmp_path))
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.endswith("--report: expected one pattern of contracts, got *a *[!a]\n")


def test_intels_chips_need_intels_compiler() -> None:
    import triton

    from compile_only.targets import target

    if "intel" in triton.backends.backends:
        assert target("pvc").gpu.backend == "xpu"
        return
    for arch in ("pvc", "host"):
        with pytest.raises(ValueError, match=f"arch: {arch} needs triton-xpu, this Triton"):
            target(arch)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("  %994 = fsub float %705, %705, !dbg !129", True),
        ("  %12 = fsub contract <2 x float> %.a, %.a", True),
        ("  %994 = fsub float %705, %706, !dbg !129", False),
        ("  %994 = fsub float %70, %705, !dbg !129", False),
        ("  %994 = fadd float %705, %705", False),
    ],
)
def test_a_remainder_that_became_zero_is_seen(line: str, found: bool) -> None:
    from compile_only.resources import NOTHING

    assert bool(NOTHING.search(line)) == found


def test_everything_declared_has_cases_in_both_directions() -> None:
    from compile_only.cases import cases, small_cases, subjects

    for subject in subjects():
        for made in (cases(subject, False), cases(subject, True), small_cases(subject)):
            assert {case.direction for case in made} == {"fwd", "bwd"}, subject.row.contract
            assert {case.dtype for case in made} == {"bfloat16", "float16", "float32"}


def test_what_has_no_gradients_has_cases_of_what_it_serves() -> None:
    from compile_only.cases import cases, further, small_cases

    for subject in further():
        required = set(subject.row.required)
        for made in (cases(subject, False), cases(subject, True), small_cases(subject)):
            assert {case.direction for case in made} == {"fwd"}, subject.row.title
            assert {case.dtype for case in made} == {"bfloat16", "float16", "float32"}
            assert all(case.features >= required for case in made)


def test_calls_of_usual_sizes_are_the_same_in_every_dtype() -> None:
    from compile_only.cases import DTYPES, cases, subjects

    for subject in subjects():
        one, *others = (cases(subject, False, [dtype]) for dtype in DTYPES)
        for other in others:
            assert [case.but(dtype=one[0].dtype) for case in other] == one
        assert {case.dtype for case in cases(subject, True, ["float16"])} == {"float16"}


def test_a_kernel_counts_for_the_dtype_whose_call_compiled_it(
    fine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compile_only import __main__ as driver
    from compile_only.cases import cases, subjects
    from compile_only.driver import Skipping
    from compile_only.report import row
    from compile_only.targets import target

    made: list[Any] = []
    runtime = Skipping()
    stack = {"bfloat16": 0, "float32": 128}

    def compiling(subject: Any, inputs: Any, chip: Any) -> None:
        takes = replace(fine.resources, stack=stack[inputs.case.dtype])
        # Of a pass over states, which are float32 in every call.
        made.append(replace(fine, kernel="chunk_states", dtype="fp32", resources=takes))
        runtime.launches += 1

    monkeypatch.setattr(driver, "answer", compiling)
    monkeypatch.setattr(driver, "decode_pooled", lambda *call: None)
    subject = subjects()[0]
    todo = cases(subject, False, list(stack))
    said = row(driver.outcome_of(subject, todo, target("sm120"), made, runtime))
    assert (said["cases"], said["kernels"], said["dtypes"]) == (4, 4, ["bfloat16", "float32"])
    assert said["functions"] == said["by_dtype"]["float32"]["functions"]
    assert len(said["faults"]) == 2
    for dtype, bytes_ in stack.items():
        one = said["by_dtype"][dtype]
        assert (one["cases"], one["kernels"]) == (2, 2)
        assert one["functions"]["chunk_states"]["stack"] == bytes_


@pytest.mark.parametrize(
    ("launches", "said"), [(1, []), (0, ["simple_gla: no kernel was launched"])]
)
def test_what_launches_nothing_is_at_fault_and_not_what_compiles_nothing(
    monkeypatch: pytest.MonkeyPatch, launches: int, said: list[str]
) -> None:
    from compile_only import __main__ as driver
    from compile_only.cases import cases, subjects
    from compile_only.driver import Skipping
    from compile_only.targets import target

    runtime = Skipping()
    launch = runtime.launcher(None, None)
    monkeypatch.setattr(driver, "answer", lambda *call: [launch() for _ in range(launches)])
    monkeypatch.setattr(driver, "decode_pooled", lambda *call: None)
    todo = cases(subjects()[0], False, ["bfloat16"])
    found = driver.outcome_of(subjects()[0], todo, target("sm120"), [], runtime)
    assert list(found.faults) == said


def test_dtypes_that_nobody_knows_are_refused() -> None:
    run = compile_only("sm90", "--dtypes", "float64")
    assert (run.returncode, run.stdout) == (2, "")
    assert "float64" in run.stderr.splitlines()[-1]
