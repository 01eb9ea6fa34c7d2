"""Who provides an import package, from what lies in folders of metadata."""

from __future__ import annotations

import sys
from pathlib import Path

import importlib_metadata
import pytest

from fla_core.plugins import installed


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that is the whole path."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def install(site: Path, name: str, *files: str, lost: str = "") -> None:
    """Write files, but for those that begin with ``lost``, and the record of all."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n\nName: no\n"
    )
    (info / "RECORD").write_text("".join(f"{file},sha256=abc,12\n" for file in files))
    for file in files:
        if not (lost and file.startswith(lost)) and not file.startswith(".."):
            path = site / file.strip('"')
            path.parent.mkdir(exist_ok=True)
            path.touch()


def test_owners_of_folders_and_modules(site: Path) -> None:
    install(site, "one", "shared/a.py", '"quoted/a,b.txt"', "../../bin/tool")
    install(site, "two", "shared/b.py", "alone.py", "data.txt", "two-1.0.dist-info/RECORD")
    assert sorted(installed.owners("shared")) == ["one", "two"]
    assert installed.owners("quoted") == ("one",)
    assert installed.owners("alone") == ("two",)
    assert installed.owners("data") == installed.owners("bin") == ()
    assert installed.unreadable() == {}


def test_records_that_quote_every_path_or_begin_it_at_the_folder(site: Path) -> None:
    install(site, "one", '"alone.py"', '"folder/a.py"', "./here/a.py", "./single.py")
    for package in ("alone", "folder", "here", "single"):
        assert installed.owners(package) == ("one",)


def test_what_is_no_longer_there_is_not_owned(site: Path) -> None:
    install(site, "gone", "triton/a.py", "module.py", "kept/a.py", lost="triton")
    (site / "module.py").unlink()
    assert installed.owners("triton") == installed.owners("module") == ()
    assert installed.owners("kept") == ("gone",)


def test_the_disk_is_not_asked_about_each_file(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "large", *(f"large/{index}.py" for index in range(50)))
    asked: list[str] = []
    exists = Path.exists

    def noted(path: Path) -> bool:
        asked.append(path.name)
        return exists(path)

    monkeypatch.setattr(Path, "exists", noted)
    assert installed.owners("large") == ("large",)
    assert len(asked) < 5


def test_a_folder_without_metadata_is_named(site: Path) -> None:
    install(site, "whole", "whole/a.py")
    install(site, "part", "part/a.py")
    (site / "part-1.0.dist-info" / "METADATA").unlink()
    assert installed.owners("whole") == ("whole",)
    assert installed.owners("part") == ()
    assert list(installed.unreadable()) == [str(site / "part-1.0.dist-info")]


def test_installed_versions_agree_with_metadata() -> None:
    for name in ("torch", "pytest"):
        assert installed.version_of(name) == importlib_metadata.version(name)
        assert name in installed.owners(name)
