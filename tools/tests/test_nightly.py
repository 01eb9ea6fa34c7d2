"""Sessions that say they run every night do."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAID = "Every night: "
MATRIX = "${{ matrix.session }}"


def sessions() -> dict[str, str]:
    """What nox's sessions say of themselves, by name."""
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {
        node.name: ast.get_docstring(node) or ""
        for node in functions
        if any("nox.session" in ast.unparse(one) for one in node.decorator_list)
    }


def scheduled(workflow: str) -> list[str]:
    """Sessions that the jobs of a workflow run, those of their matrix in its place."""
    found = []
    for job in re.split(r"^  (?=\w+:\n)", workflow, flags=re.MULTILINE):
        for named in re.findall(r"\.ci/run -s (.+)$", job, re.MULTILINE):
            (listed,) = re.findall(r"^ +session: \[(.+)\]$", job, re.MULTILINE) or [""]
            found += listed.split(", ") if named == MATRIX else named.split()
    return found


def test_sessions_run_every_night_that_say_so_and_no_other() -> None:
    workflow = (ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8")
    said = sorted(name for name, text in sessions().items() if text.startswith(SAID))
    assert len(said) > 1
    assert sorted(scheduled(workflow)) == said


def test_sessions_of_jobs_and_of_their_matrices_are_read() -> None:
    job = "  {}:\n    strategy:\n      matrix:\n{}    steps:\n      - run: .ci/run -s {}\n"
    listed = job.format("many", "        session: [b, c]\n", MATRIX)
    assert scheduled("jobs:\n" + job.format("one", "", "a") + listed) == ["a", "b", "c"]
