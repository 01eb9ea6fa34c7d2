"""What importing the package costs and what it brings."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import fla_core

LIGHT = (
    "fla_core",
    "fla_core.dispatch",
    "fla_core.dispatch.explain",
    "fla_core.plugins.registry",
    "fla_core.contracts.lock",
    "fla_core.reference.plugin",
)


def _modules_after(statement: str) -> set[str]:
    program = f"import sys, json; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_load_no_toolchain(module: str) -> None:
    loaded = _modules_after(f"import {module}")
    assert loaded.isdisjoint({"torch", "triton", "tilelang"})


def test_import_touches_no_plugin_and_reads_no_metadata() -> None:
    loaded = _modules_after("import fla_core")
    assert not [name for name in loaded if name.startswith("fla_backend_")]
    assert loaded.isdisjoint({"fla_core.reference.plugin", "pluggy", "importlib_metadata"})


def test_listing_plugins_and_asking_loads_no_toolchain() -> None:
    loaded = _modules_after(
        "import fla_core; fla_core.backends(); fla_core.explain('chunk_kda', device='cpu')"
    )
    assert "fla_core.reference.plugin" in loaded
    assert loaded.isdisjoint({"torch", "triton", "tilelang"})


def test_operators_do_not_load_the_tracer_of_torch_compile() -> None:
    assert "torch._dynamo" not in _modules_after("import fla_core.ops")


@pytest.mark.parametrize("name", fla_core.__all__)
def test_public_names_resolve(name: str) -> None:
    assert getattr(fla_core, name) is not None
    assert name in dir(fla_core)


def test_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'fla_core' has no attribute 'usee'"):
        fla_core.usee  # noqa: B018
