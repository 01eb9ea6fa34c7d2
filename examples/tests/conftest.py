"""Examples are scripts, not a package: their folder is on the path when they run, and here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
