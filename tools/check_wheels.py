"""Check built wheels before they are installed.

Usage: ``python tools/check_wheels.py FOLDER``. No two wheels may own the same file (an install of
one would break the other), each carries its licence, each package says that it is typed, and the
metapackage has no files of its own.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

METAPACKAGE = "fla_kernels"


def check(folder: Path) -> Iterator[str]:
    """Yield one line per fault of the wheels in ``folder``."""
    owners = defaultdict(list)
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        yield f"no wheel in {folder}"
    for wheel in wheels:
        names = ZipFile(wheel).namelist()
        files = [name for name in names if ".dist-info/" not in name]
        for name in files:
            owners[name].append(wheel.name)
        if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
            yield f"{wheel.name} has no licence"
        if wheel.name.split("-")[0] == METAPACKAGE:
            yield from (f"{wheel.name} is the metapackage but has {name}" for name in files)
        elif not any(name.endswith("/py.typed") for name in files):
            yield f"{wheel.name} has no py.typed"
    for name, holders in owners.items():
        if len(holders) > 1:
            yield f"{name} is in {', '.join(holders)}"


def main(arguments: list[str]) -> int:
    faults = list(check(Path(arguments[0])))
    for fault in faults:
        print(fault)
    print(f"{len(faults)} faults in wheels")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
