"""No install of this project may replace a vendor's build of torch or triton."""

import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(path.parent for path in ROOT.glob("*/pyproject.toml"))
TOOLCHAINS = {"triton", "triton-ascend", "pytorch-triton", "tilelang", "torch-npu"}

EXTRAS = {
    "cuda": {"fla-backend-cuda", "torch", "triton"},
    "rocm": {"fla-backend-rocm", "torch"},
    "xpu": {"fla-backend-xpu", "torch"},
    "ascend": {"fla-backend-ascend", "torch", "torch-npu", "triton-ascend"},
    "npu": {"fla-kernels[ascend]"},
    "tilelang": {"fla-backend-tilelang", "tilelang"},
    "cpu": {"torch"},
    "conformance": {"fla-conformance"},
}


def project(folder: Path) -> dict[str, Any]:
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    metadata: dict[str, Any] = tomllib.loads(text)["project"]
    return metadata


def name(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return requirement.name + extras


def is_lower_bound(requirement: Requirement) -> bool:
    return all(specifier.operator == ">=" for specifier in requirement.specifier)


def requirements(folder: Path) -> list[Requirement]:
    """Everything the distribution can ask an installer for, extras included."""
    metadata = project(folder)
    extras = metadata.get("optional-dependencies", {}).values()
    return [Requirement(text) for group in (metadata["dependencies"], *extras) for text in group]


def test_every_distribution_is_looked_at() -> None:
    assert len(FOLDERS) == 8


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_distribution_names_no_toolchain(folder: Path) -> None:
    assert TOOLCHAINS.isdisjoint(requirement.name for requirement in requirements(folder))


@pytest.mark.parametrize("folder", [ROOT, *FOLDERS], ids=lambda folder: folder.name)
def test_requirements_are_lower_bounds(folder: Path) -> None:
    assert all(is_lower_bound(requirement) for requirement in requirements(folder))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_licence_is_the_projects(folder: Path) -> None:
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_extras_name_one_toolchain_each() -> None:
    metadata = project(ROOT)
    extras = metadata["optional-dependencies"]
    found = {extra: {name(Requirement(text)) for text in extras[extra]} for extra in extras}
    assert found == EXTRAS
    assert {Requirement(text).name for text in metadata["dependencies"]} == {"fla-kernels-core"}


@pytest.mark.parametrize("text", ["torch==2.13.0", "torch<3", "torch~=2.7", "torch>=2.7,<3"])
def test_a_bound_that_replaces_an_install_is_seen(text: str) -> None:
    assert not is_lower_bound(Requirement(text))
