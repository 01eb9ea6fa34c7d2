"""All of them installed at once, in fresh interpreters."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hostile_cases import BROKEN, EVERY, HANGING, NAMES
from hostile_wheels import ENTRY_NAMES


def python(environment: dict[str, str], program: str, **variables: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_importing_core_loads_none(environment: dict[str, str]) -> None:
    program = "import sys, fla_core; print([n for n in sys.modules if n.startswith('hostile')])"
    assert python(environment, program).strip() == "[]"


def test_one_that_hangs_on_import_can_be_left_out(environment: dict[str, str]) -> None:
    program = """
import torch
from fla_core.ops.simple_gla import chunk_simple_gla
x = torch.ones(1, 4, 1, 8)
print(bool(torch.isfinite(chunk_simple_gla(x, x, x, backend="honest")[0]).all()))
"""
    assert python(environment, program, FLA_PLUGINS="-hangs_on_import").strip() == "True"


@pytest.fixture(scope="module")
def states(environment: dict[str, str]) -> dict[str, list[str]]:
    """States of all plugins, loaded in an interpreter that had not loaded torch before."""
    program = """
import json, sys
from fla_core import backends
assert "torch" not in sys.modules
records = [(record.name, record.summary()) for record in backends()]
import torch
print(json.dumps([records, str(torch.get_default_dtype())]))
"""
    output = python(environment, program, FLA_PLUGINS="-hangs_on_import")
    records, dtype = json.loads(output)
    found: dict[str, list[str]] = {"default dtype": [dtype]}
    for name, state in records:
        found.setdefault(name, []).append(state)
    return found


def test_all_are_found(states: dict[str, list[str]]) -> None:
    assert {ENTRY_NAMES.get(name, name) for name in EVERY} <= states.keys()
    assert [len(states[name]) for name in ("twin", "reference")] == [2, 2]
    assert states["hangs_on_import"] == ['excluded: FLA_PLUGINS="-hangs_on_import"']


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_each_keeps_its_failure_to_itself(states: dict[str, list[str]], name: str) -> None:
    (state,) = states[name]
    if "probe" in name or name == "missing_kernel":
        assert state == "loaded"  # nobody has called it yet
    elif name == "replaces_matmul":
        # Nobody saw the function that it replaced in the torch that it loaded itself.
        assert state in ("loaded", f"broken: {BROKEN[name]}")
    else:
        assert state.startswith("broken: ")
        assert BROKEN[name] in state


@pytest.mark.parametrize("name", sorted(EVERY - BROKEN.keys() - {*NAMES, *HANGING}))
def test_the_others_are_loaded(states: dict[str, list[str]], name: str) -> None:
    assert states[name] == ["loaded"]


def test_settings_of_a_torch_that_a_plugin_loaded(states: dict[str, list[str]]) -> None:
    assert states["default dtype"] == ["torch.float32"]
