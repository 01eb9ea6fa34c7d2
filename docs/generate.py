"""Write the parts of the documentation that follow from the code, or check that they are current.

    python docs/generate.py            write
    python docs/generate.py --check    exit with status 1 and a diff where a page is stale

A page is generated as a whole, or between ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import catalogue
import figures
import support
import tables

ROOT = Path(__file__).resolve().parent.parent
WHOLE: dict[str, Callable[[], str]] = {
    "docs/operators.md": catalogue.page,
    "docs/cli.md": tables.command_page,
}
PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"backends": tables.backends},
    "docs/backends.md": {"backends": tables.backends, "requirements": tables.requirements},
    "docs/environment.md": {"variables": tables.variables},
    "docs/support.md": {
        "matrix": support.matrix,
        "evidence": support.evidence,
        "worst": support.worst,
    },
    "docs/errors.md": {"errors": tables.errors, "reasons": tables.reasons},
    "docs/benchmarks/h200.md": {
        "taken": figures.taken,
        "timings": figures.timings,
        "shapes": figures.other_shapes,
        "steps": figures.steps,
        "peers": figures.peers,
        "proven": figures.proven,
    },
}


class Stale(Exception):
    """A page cannot be generated as it is."""


def expected(root: Path) -> dict[Path, str]:
    """What every generated page should contain."""
    pages = {root / name: make() for name, make in WHOLE.items()}
    for name, parts in PARTS.items():
        path = root / name
        text = path.read_text(encoding="utf-8")
        for part, make in parts.items():
            text = replace_part(name, text, part, make())
        pages[path] = text
    return pages


def replace_part(page: str, text: str, part: str, content: str) -> str:
    """Put content between the markers of a part; they must be there exactly once."""
    start, end = f"<!-- generated: {part} -->\n", "<!-- end -->"
    pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise Stale(f"{page} needs one pair of markers {start.strip()} ... {end}")
    return pattern.sub(lambda _: f"{start}\n{content}\n{end}", text)


def difference(path: Path, name: str, wanted: str) -> str:
    """Unified diff from the file to what it should contain; ``""`` when it does."""
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = difflib.unified_diff(
        found.splitlines(keepends=True), wanted.splitlines(keepends=True), name, "generated", n=1
    )
    return "".join(lines)


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Write the pages, or with ``--check`` compare them; return the exit status."""
    if unknown := [argument for argument in arguments if argument != "--check"]:
        print(f"unknown argument {unknown[0]!r}; there is only --check", file=sys.stderr)
        return 2
    try:
        pages = expected(root)
    except (Stale, tables.Incomplete) as error:
        print(error, file=sys.stderr)
        return 1
    if "--check" not in arguments:
        for path, text in pages.items():
            path.write_text(text, encoding="utf-8")
        return 0
    names = {path: str(path.relative_to(root)) for path in pages}
    found = [d for path, text in pages.items() if (d := difference(path, names[path], text))]
    for diff in found:
        print(diff)
    if found:
        print("stale: run python docs/generate.py")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
