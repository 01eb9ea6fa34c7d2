"""The judges of compiled kernels: they must see what a chip cannot run as it should be run."""

from __future__ import annotations

import importlib.util
import subprocess
from dataclasses import replace
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

    takes = replace(fine.resources, matrix={})
    for arch, expected in (("dg2", 0), ("pvc", 1), ("bmg", 1)):
        chip = replace(target("sm120"), profile=INTEL[arch])
        assert len(list(faults(replace(fine, resources=takes), chip))) == expected, arch


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
