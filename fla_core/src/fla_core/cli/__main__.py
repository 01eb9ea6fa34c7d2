"""``python -m fla_core.cli``."""

from fla_core.cli import main

main()
