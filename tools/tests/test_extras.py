"""Installing an extra beside a vendor's torch and triton leaves both as they are.

Against an index of empty wheels, in an environment in which the vendor's builds are installed; both
hold what the real ones say of each other. The stock builds are in the index too, and newer.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent.parent
OURS = (".", "fla_core", "fla_triton", "fla_backend_cuda", "fla_backend_rocm", "fla_backend_xpu")
OTHERS = ("pluggy", "importlib-metadata", "packaging", "typer", "rich")
STOCK = {"torch": ("2.13.0", ("triton==3.6.0",)), "triton": ("3.6.0", ())}
VENDORS = {
    "rocm": {
        "torch": ("2.11.0+rocm6.4", ("pytorch-triton-rocm==3.6.0",)),
        "pytorch-triton-rocm": ("3.6.0", ()),
    },
    "xpu": {
        "torch": ("2.11.0+xpu", ("pytorch-triton-xpu==3.6.0",)),
        "pytorch-triton-xpu": ("3.6.0", ()),
    },
}


def metadata(name: str, version: str, needs: Iterable[str], extras: Iterable[str] = ()) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Provides-Extra: {extra}" for extra in extras]
    lines += [f"Requires-Dist: {need}" for need in needs]
    return "\n".join(lines) + "\n"


def wheel(folder: Path, name: str, version: str, text: str) -> None:
    """An empty wheel."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as file:
        file.writestr(f"{info}/METADATA", text)
        file.writestr(f"{info}/WHEEL", tags)
        file.writestr(f"{info}/RECORD", "")


def our_wheel(folder: Path, source: str) -> None:
    """An empty wheel that needs what one of our distributions needs."""
    project = tomllib.loads((ROOT / source / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    extras = project.get("optional-dependencies", {})
    needs = list(project.get("dependencies", ()))
    needs += [f'{need}; extra == "{extra}"' for extra, all_ in extras.items() for need in all_]
    text = metadata(project["name"], project["version"], needs, extras)
    wheel(folder, project["name"], project["version"], text)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything an install could want."""
    folder = tmp_path_factory.mktemp("index")
    for source in OURS:
        our_wheel(folder, source)
    for name in OTHERS:
        wheel(folder, name, "99.0", metadata(name, "99.0", ()))
    for name, (version, needs) in STOCK.items():
        wheel(folder, name, version, metadata(name, version, needs))
    return folder


def added(tmp_path: Path, index: Path, vendor: str, extra: str) -> dict[str, str]:
    """What an install of an extra would add or change, beside a vendor's builds."""
    machine = tmp_path / "machine"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(machine)], check=True)
    python = machine / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    where = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    for name, (version, needs) in VENDORS[vendor].items():
        wheel(tmp_path, name, version, metadata(name, version, needs))
    for file in tmp_path.glob("*.whl"):
        zipfile.ZipFile(file).extractall(where)
    report = tmp_path / "report.json"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--dry-run", "--quiet"]
    local = ["--no-index", "--find-links", str(index), "--report", str(report)]
    run = subprocess.run(
        [*pip, *local, f"fla-kernels[{extra}]"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    chosen = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {one["metadata"]["name"]: one["metadata"]["version"] for one in chosen}


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_vendors_builds_stay(tmp_path: Path, index: Path, vendor: str) -> None:
    found = added(tmp_path, index, vendor, vendor)
    assert f"fla-backend-{vendor}" in found
    assert "fla-kernels-triton" in found
    assert {"torch", "triton", *VENDORS[vendor]}.isdisjoint(found)


def test_an_extra_that_names_triton_would_be_seen(tmp_path: Path, index: Path) -> None:
    assert added(tmp_path, index, "rocm", "cuda")["triton"] == "3.6.0"
