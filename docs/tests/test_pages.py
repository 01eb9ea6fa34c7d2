"""Every Python block runs and prints what the page says; commands too; links lead somewhere."""

from __future__ import annotations

import contextlib
import doctest
import io
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fla_core.cli import app
from pages import DOCS, ROOT, Block, anchors, blocks, links, pages

#: Pages on plugins that are installed for them, by test_plugin_guide and test_conformance_pages.
INSTALLING = {
    DOCS / "plugins" / "writing-a-plugin.md",
    DOCS / "plugins" / "tutorial.md",
    DOCS / "plugins" / "new-hardware.md",
    DOCS / "conformance.md",
}
#: Their examples suppose the backends of example_plugins.
WITH_BACKENDS = {DOCS / "choosing-a-backend.md", DOCS / "errors.md"}
PAGES = pages()
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def same(wanted: str, got: str, where: str) -> None:
    assert doctest.OutputChecker().check_output(wanted, got, _FLAGS), f"{where} printed:\n{got}"


def run_python(block: Block, names: dict[str, Any], where: str) -> None:
    source = "\n" * (block.line - 1) + block.body
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, where, "exec"), names)
    if block.output is not None:
        same(block.output, printed.getvalue(), where)


def run_commands(block: Block, where: str) -> None:
    """Run each ``$ fla-kernels ...`` line and compare what follows it, up to the next one."""
    for part in filter(None, block.body.split("$ ")):
        line, _, wanted = part.partition("\n")
        program, *arguments = shlex.split(line)
        assert program == "fla-kernels", f"{where}: cannot run {line!r}"
        result = CliRunner().invoke(app, arguments)
        same(wanted, result.output, f"{where}: {line}")


RUNNABLE = [
    path
    for path in PAGES
    if (path.parent == ROOT or path.is_relative_to(DOCS))
    and path not in INSTALLING
    and any(block.language in ("python", "console") for block in blocks(path))
]


@pytest.mark.parametrize("path", RUNNABLE, ids=name_of)
def test_blocks_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if path in WITH_BACKENDS:
        request.getfixturevalue("two_backends")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(path):
        where = f"{name_of(path)}:{block.line}"
        if block.language == "python":
            run_python(block, names, where)
        elif block.language == "console":
            run_commands(block, where)


def test_the_pages_that_should_run_do() -> None:
    names = {name_of(path) for path in RUNNABLE}
    assert {"README.md", "docs/quickstart.md", "docs/choosing-a-backend.md"} <= names


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_fences_are_closed_and_of_a_known_kind(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("```") == 2 * len(blocks(path))
    known = {"python", "text", "console", "sh", "toml", "json", ""}
    assert {block.language for block in blocks(path)} <= known


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_resolve(path: Path) -> None:
    for target, anchor in links(path):
        there = (path.parent / target).resolve() if target else path
        assert there.exists(), f"{target} does not exist"
        assert there.is_relative_to(ROOT)
        if anchor:
            assert anchor in anchors(there), f"{name_of(there)} has no #{anchor}"


def test_every_page_is_reachable_from_the_readme() -> None:
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        path = waiting.pop()
        if path in seen or path.suffix != ".md" or not path.exists():
            continue
        seen.add(path)
        waiting += [(path.parent / target).resolve() for target, _ in links(path) if target]
    assert {path for path in PAGES if path.is_relative_to(DOCS)} <= seen


def test_the_quickstart_is_the_example() -> None:
    (shown,) = [b for b in blocks(DOCS / "quickstart.md") if b.language == "python"]
    assert shown.body == (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8")


def test_a_wrong_output_is_noticed() -> None:
    block = Block("python", "print(1 + 1)\n", 1, "3\n", "")
    with pytest.raises(AssertionError, match="printed"):
        run_python(block, {}, "nowhere")
    wrong = Block("console", "$ fla-kernels explain kda --device cpu\nnothing\n", 1, None, "")
    with pytest.raises(AssertionError, match="printed"):
        run_commands(wrong, "nowhere")
