"""``fla-kernels new-plugin``: a package for a new backend that works, to be filled with kernels.

JSON: ``name``, ``distribution``, ``package``, ``folder`` and ``files``, a list of ``path`` (below
the folder) and ``about``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from fla_core.cli import _view
from fla_core.errors import FlaError, layout

LONGEST_NAME = 32
_WORDS = "lower-case letters, digits and single '_', beginning with a letter"
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_OUR_BACKENDS = frozenset(("ascend", "cuda", "rocm", "tilelang", "xpu"))

FILES = (
    ("pyproject.toml", "pyproject.toml", "the distribution and its entry point"),
    ("README.md", "README.md", "what it computes, how to check it, what to do next"),
    ("src/$package/plugin.py", "plugin.py", "the card, the domain and the probe; no torch here"),
    ("src/$package/simple_gla.py", "simple_gla.py", "one operator, forward and backward"),
    ("src/$package/conformance-expect.toml", "conformance-expect.toml", "known failures; none yet"),
    ("src/$package/__init__.py", "__init__.py", "the package"),
    ("tests/test_plugin.py", "test_plugin.py", "the package's own tests"),
    (".github/workflows/conformance.yml", "workflow.yml", "tests and conformance suite in CI"),
    (".gitignore", "gitignore", "what is built or written by tests"),
)
"""Path below the folder, template, and what the file is for."""


class NewPluginError(FlaError, ValueError):
    """The package cannot be made as asked; nothing has been written."""


@_view.command
def new_plugin(
    name: Annotated[str, typer.Argument(help="What FLA_BACKEND will call it: mychip.")],
    folder: Annotated[
        Path, typer.Option("--dir", help="Where to put the folder of the package.")
    ] = Path(),
    as_json: _view.Json = False,
) -> None:
    """Make a package for a new backend: one operator that works, tests, conformance in CI.

    It is written to fla-backend-NAME and computes simple_gla in plain PyTorch, forwards and
    backwards, until kernels take its place. Nothing that exists is overwritten.
    """
    _check(name)
    words = {
        "name": name,
        "distribution": f"fla-backend-{name.replace('_', '-')}",
        "package": f"fla_backend_{name}",
    }
    target = folder / words["distribution"]
    _write(target, render(words))
    files = [{"path": _fill(path, words), "about": about} for path, _, about in FILES]
    if as_json:
        _view.emit({**words, "folder": str(target), "files": files})
        return
    to = _view.console()
    to.print(f"Wrote the backend {name} to {target}", style="bold", markup=False)
    _view.pairs(to, [(file["path"], file["about"]) for file in files])
    _view.heading(to, "Next")
    for command in (
        f"pip install -e '{target}[test]'",
        f"pytest {target}",
        f"fla-kernels selfcheck --backend {name} --op chunk_simple_gla",
        f"fla-conformance run {name} --level L3",
    ):
        to.print(f"  {command}", markup=False, soft_wrap=True)


def render(words: dict[str, str]) -> dict[str, str]:
    """Contents of every file by path, with the words filled in."""
    from importlib.resources import files

    templates = files("fla_core.cli") / "templates"
    texts = ((path, templates / f"{template}.tmpl") for path, template, _ in FILES)
    return {
        _fill(path, words): _fill(text.read_text(encoding="utf-8"), words) for path, text in texts
    }


def _fill(text: str, words: dict[str, str]) -> str:
    from string import Template

    return Template(text).substitute(words)


def _check(name: str) -> None:
    """Raise unless the name can be that of a plugin, of a package and of a distribution."""
    from fla_core.plugins.validate import RESERVED

    if not _NAME.fullmatch(name):
        close = re.sub(r"[^a-z0-9]+", "_", name.lower()).lstrip("_0123456789").rstrip("_")
        raise NewPluginError(_unfit(name, _WORDS, f"fla-kernels new-plugin {close or 'mychip'}"))
    if len(name) > LONGEST_NAME:
        raise NewPluginError(_unfit(name, f"at most {LONGEST_NAME} letters, got {len(name)}"))
    if name in RESERVED:
        raise NewPluginError(_unfit(name, f"none of {', '.join(RESERVED)}: policies use these"))
    if name in _OUR_BACKENDS:
        taken = ", ".join(sorted(_OUR_BACKENDS))
        raise NewPluginError(_unfit(name, f"none of {taken}: fla-kernels has these backends"))


def _unfit(name: str, expected: str, following: str = "") -> str:
    headline = f"{name!r} cannot be the name of a new plugin"
    return layout(headline, [("expected", expected), ("next", following)])


def _write(target: Path, texts: dict[str, str]) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.mkdir()
    except FileExistsError as error:
        blocked = target if Path(error.filename) == target else error.filename
        rows = [("next", "choose another name or another --dir; nothing is ever overwritten")]
        raise NewPluginError(layout(f"{blocked} exists already", rows)) from None
    except OSError as error:
        raise NewPluginError(f"{target} cannot be made: {error.strerror}") from None
    for path, text in texts.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_text(text, encoding="utf-8")
