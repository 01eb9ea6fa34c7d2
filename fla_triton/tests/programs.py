"""Programs beside the tests, each in a process of its own: kernels remember what ran them first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
ENVIRONMENT = {**os.environ, "TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"}
"""What interprets says so before it imports Triton."""


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module with arguments to its end; what it says is in the result."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=FOLDER,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
