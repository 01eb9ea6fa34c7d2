"""What the tests of any plugin's own package want to know."""

from __future__ import annotations

import subprocess
import sys

TOOLCHAINS = frozenset({"torch", "torch_npu", "triton", "tilelang"})


def toolchains_loaded_by(module: str) -> list[str]:
    """Names of the toolchains that importing a module loads, seen in a fresh interpreter."""
    program = f"import sys, {module}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if run.returncode:
        raise ImportError(f"importing {module} failed: {run.stderr}")
    return sorted(TOOLCHAINS.intersection(run.stdout.split()))
