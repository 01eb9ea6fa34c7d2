"""Who owns an import package is read from real metadata; the rest of ``detect`` from fakes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fla_core.plugins import Backend, Probe, detect
from fla_core.testing import toolchains_loaded_by

CARD = Backend(name="acme", targets=("cuda", "xpu"), toolchain="triton")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install distributions that contain the package ``triton``, as metadata only."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, version: str) -> None:
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "top_level.txt").write_text("triton\n")
        (info / "RECORD").write_text(f"triton/__init__.py,,\n{info.name}/RECORD,,\n")

    # The machine's own Triton, if it has one, is out of sight.
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return install


def test_nobody_owns_triton(install) -> None:
    with pytest.raises(detect.Unavailable, match=r"^no installed distribution provides triton$"):
        detect.triton_build(detect.STOCK)
    assert detect.report((), ("triton",))["triton"] == "not installed"


@pytest.mark.parametrize("vendor", ["rocm", "xpu", "ascend", "stock"])
@pytest.mark.parametrize("build", ["triton", *detect.TRITON_BUILDS])
def test_the_owner_must_be_the_right_vendors(install, build: str, vendor: str) -> None:
    install(build, "3.6.0")
    assert detect.report((), ("triton",))["triton"] == f"{build} 3.6.0"
    if detect.TRITON_BUILDS.get(build, "stock") == vendor:
        assert detect.triton_build(vendor) == (build, "3.6.0")
    else:
        with pytest.raises(detect.Unavailable, match=rf"^triton belongs to {build} 3.6.0, this"):
            detect.triton_build(vendor)


def test_two_owners_are_a_conflict(install) -> None:
    install("triton-ascend", "3.2.0")
    install("triton", "3.6.0")
    with pytest.raises(detect.Unavailable, match="overwrite each other's files, uninstall one"):
        detect.triton_build("ascend", detect.STOCK)
    assert "overwrite each other's files" in detect.report((), ("triton",))["triton"]


@pytest.mark.parametrize(("device", "index"), [("cuda", 0), ("cuda:3", 3), ("xpu:1", 1)])
def test_device_index(device: str, index: int) -> None:
    assert detect.device_index(CARD, device) == index


def test_device_of_another_type() -> None:
    with pytest.raises(detect.Unavailable, match=r"^it serves cuda and xpu devices, not 'npu'$"):
        detect.device_index(CARD, "npu:0")


def test_imported() -> None:
    assert detect.imported("json").__name__ == "json"
    with pytest.raises(detect.Unavailable, match=r"^no_such_toolchain is not installed$"):
        detect.imported("no_such_toolchain")


def test_import_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_installed.py").write_text("raise OSError('libcann.so:\\n not found')")
    monkeypatch.syspath_prepend(str(tmp_path))
    reason = r"^importing half_installed raised OSError: libcann.so: not found$"
    with pytest.raises(detect.Unavailable, match=reason):
        detect.imported("half_installed")


def test_whatever_a_probe_raises_becomes_a_reason() -> None:
    def unavailable() -> Probe:
        raise detect.Unavailable("no GPU")

    def broken() -> Probe:
        raise OSError("driver")

    assert detect.answered(unavailable) == Probe(False, "no GPU")
    assert detect.answered(broken) == Probe(False, "looking for the device raised OSError: driver")
    assert detect.answered(lambda: Probe(True)) == Probe(True)


def test_architectures_as_torch_tells_them() -> None:
    cuda = SimpleNamespace(
        get_device_capability=lambda index: (12, 0),
        get_device_properties=lambda index: SimpleNamespace(gcnArchName="gfx90a:sramecc+:xnack-"),
    )
    nvidia = SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None))
    amd = SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip="6.3"))
    assert (detect.gpu_arch(nvidia, 0), detect.gpu_arch(amd, 0)) == ("sm120", "gfx90a")


def test_device_files(tmp_path: Path) -> None:
    for name in ("gpu1", "gpu0", "gpuctl"):
        (tmp_path / name).touch()
    assert detect.device_files(f"{tmp_path}/gpu[0-9]") == (
        f"{tmp_path}/gpu0",
        f"{tmp_path}/gpu1",
    )
    assert detect.report(("/no/a*", "/no/b"), ())["device files"] == "no /no/a* or /no/b"


def test_helpers_load_no_toolchain() -> None:
    assert toolchains_loaded_by("fla_core.plugins.detect") == []
    assert toolchains_loaded_by("torch") == ["torch"]
    with pytest.raises(ImportError, match="importing no_such_plugin failed"):
        toolchains_loaded_by("no_such_plugin")
