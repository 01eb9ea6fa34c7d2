"""Running programs under compute-sanitizer's memcheck, and what its answers mean.

A run that nobody watched looks like one without faults: a checker that does not know the device
lets programs go on. So a run counts only with the checker's own summary, and only beside a run of
``stray.py`` in which it found the fault that is planted there.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

NAME = "compute-sanitizer"
CAUGHT = 9
"""Exit status of a program in which the checker found something."""

OPTIONS = ("--tool", "memcheck", "--error-exitcode", str(CAUGHT), "--print-limit", "3")
ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Torch's own pool hides accesses that leave a tensor but not the pool."""


def sanitizer(places: Iterable[Path] | None = None) -> str | None:
    """Path of compute-sanitizer, wherever a toolkit or a wheel has put it; None if nobody has.

    Args:
        places: folders to look into beside ``PATH``; those of toolkits and wheels by default.
    """
    if found := shutil.which(NAME):
        return found
    if places is None:
        toolkits = sorted(Path("/usr/local").glob("cuda*"))
        places = [*toolkits, *(Path(p) / "nvidia" for p in sys.path if p)]
    for place in places:
        for folder in ("bin", "cu*/bin", NAME, f"cu*/{NAME}", f"*/{NAME}", "*/bin"):
            for file in sorted(place.glob(f"{folder}/{NAME}")):
                if file.is_file() and os.access(file, os.X_OK):
                    return str(file)
    return None


def watched(checker: str, command: list[str]) -> list[str]:
    """The command line of a program under the checker.

    Child processes are watched too, which is the checker's default: ``python3`` may be a script
    that starts the interpreter, and in the script alone it would wait for a device in vain.
    """
    return [checker, *OPTIONS, *command]


def fault(status: int, text: str) -> str:
    """What is wrong with a watched run; ``""`` if it was watched and nothing was found."""
    found = re.findall(r"ERROR SUMMARY: (\d+) error", text)
    if not found:
        return f"the checker wrote no summary and ended with {status}: it watched nothing"
    if status or any(count != "0" for count in found):
        return f"{found[-1]} faulty accesses, ended with {status}"
    return ""


def control_fault(status: int, text: str) -> str:
    """What is wrong with a watched run of ``stray.py``; ``""`` if the planted fault was seen."""
    if status == CAUGHT and "Invalid __global__ write" in text:
        return ""
    return f"the checker did not see a planted fault and ended with {status}"
