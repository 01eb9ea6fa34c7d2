"""``python -m fla_conformance.cli``."""

from fla_conformance.cli import main

main()
