"""What the distribution promises before any backend is judged."""

from importlib.metadata import distribution
from pathlib import Path

import fla_conformance


def test_is_the_installed_package_not_its_folder() -> None:
    assert fla_conformance.__file__ is not None
    assert Path(fla_conformance.__file__).parent.name == "fla_conformance"


def test_version_comes_from_the_distribution() -> None:
    assert fla_conformance.__version__ == distribution("fla-conformance").version
