"""The quick start runs, and says what it did."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "quickstart.py"


def test_it_runs() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "o [2, 100, 4, 64]" in done.stdout
    assert "step [2, 1, 4, 64]" in done.stdout
    assert "reference:kda#chunk" in done.stdout
