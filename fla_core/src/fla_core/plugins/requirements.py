"""Requirements of plugins, answered from the metadata of installed distributions only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from fla_core.plugins.installed import owners, version_of


def installed_version(name: str) -> str | None:
    """Version of a distribution, or of the distribution that provides an import package ``name``.

    Vendor builds carry other names: ``pytorch-triton-rocm`` provides ``triton``.
    """
    if version := version_of(name):
        return version
    providers = owners(name.replace("-", "_"))
    return version_of(providers[0]) if providers else None


def parse_requirement(text: str) -> Requirement | str:
    """Return the requirement, or why it cannot be read."""
    try:
        return Requirement(text)
    except InvalidRequirement as error:
        return f"{text!r} is not a requirement: {str(error).splitlines()[0]}"


def unmet(requirements: tuple[str, ...]) -> str:
    """Name the first requirement that is not met; ``""`` when all are."""
    for text in requirements:
        requirement = parse_requirement(text)
        if isinstance(requirement, str):
            return requirement
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        version = installed_version(requirement.name)
        if version is None:
            return f"needs {text}, which is not installed"
        if not _contains(requirement, version):
            return f"needs {text}, found {version}"
    return ""


# A stock triton beside a vendor's torch overwrites the vendor's own, so it is not the advice here.
_VENDOR_TORCH = {"fla-backend-rocm": "AMD", "fla-backend-xpu": "Intel"}


def remedy(distribution: str, requirements: Sequence[str]) -> str:
    """How to meet those requirements of a plugin that are not met; ``""`` when all are."""
    missing = [text for text in requirements if unmet((text,))]
    if missing and (vendor := _VENDOR_TORCH.get(distribution)):
        return f"install torch's build for {vendor} GPUs, which brings its own triton"
    return f"pip install {' '.join(map(repr, missing))}" if missing else ""


def matches(text: str, versions: Mapping[str, str]) -> bool:
    """True when the toolchain at hand satisfies a requirement; ``versions`` win over metadata."""
    if text in ("", "*"):
        return True
    requirement = parse_requirement(text)
    if isinstance(requirement, str):
        return False
    version = versions.get(requirement.name) or installed_version(requirement.name)
    return version is not None and _contains(requirement, version)


def _contains(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False
