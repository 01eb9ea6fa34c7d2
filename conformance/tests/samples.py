"""The sample plugins, each built into a wheel and laid out as pip would."""

from __future__ import annotations

import zipfile
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

FOLDER = Path(__file__).parents[1] / "samples"


def names() -> list[str]:
    """Every sample, by the name of its folder."""
    return sorted(path.parent.name for path in FOLDER.glob("*/pyproject.toml"))


def install(name: str, wheels: Path, site: Path) -> None:
    """Build a sample's wheel and unpack it into a folder of distributions."""
    (wheel,) = WheelBuilder(str(FOLDER / name)).build(directory=str(wheels))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
