"""The wheel checker finds every kind of planted fault, and none in sound wheels."""

from pathlib import Path
from zipfile import ZipFile

import pytest

import check_wheels

SOUND = {
    "fla_kernels": [],
    "fla_kernels_core": ["fla_core/__init__.py", "fla_core/py.typed"],
    "fla_backend_cuda": ["fla_backend_cuda/plugin.py", "fla_backend_cuda/py.typed"],
}


def build(folder: Path, contents: dict[str, list[str]], *, licence: bool = True) -> Path:
    for name, files in contents.items():
        with ZipFile(folder / f"{name}-0.1.0-py3-none-any.whl", "w") as wheel:
            info = [f"{name}-0.1.0.dist-info/licenses/LICENSE"] if licence else []
            for file in [*files, *info, f"{name}-0.1.0.dist-info/RECORD"]:
                wheel.writestr(file, "")
    return folder


def test_sound_wheels_pass(tmp_path: Path) -> None:
    assert check_wheels.main([str(build(tmp_path, SOUND))]) == 0


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"fla_backend_cuda": ["fla_core/py.typed"]}, "fla_core/py.typed is in fla_backend_cuda-"),
        ({"fla_kernels": ["docs/index.md"]}, "is the metapackage but has docs/index.md"),
        ({"fla_backend_cuda": ["fla_backend_cuda/plugin.py"]}, "has no py.typed"),
    ],
)
def test_planted_fault_is_found(
    tmp_path: Path, contents: dict[str, list[str]], message: str
) -> None:
    folder = build(tmp_path, {**SOUND, **contents})
    assert message in "\n".join(check_wheels.check(folder))
    assert check_wheels.main([str(folder)]) == 1


def test_missing_licence_is_found(tmp_path: Path) -> None:
    faults = list(check_wheels.check(build(tmp_path, SOUND, licence=False)))
    assert len(faults) == len(SOUND)
    assert all("has no licence" in fault for fault in faults)


def test_no_wheel_is_not_a_success(tmp_path: Path) -> None:
    assert check_wheels.main([str(tmp_path)]) == 1
