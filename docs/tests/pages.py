"""Reading Markdown pages: fenced blocks, links, anchors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (?P<text>.+)$", re.MULTILINE)
_FILE = re.compile(r"^`(?P<name>[\w./-]+\.\w+)`:\s*\Z", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Attributes:
        language: first word after the fence.
        body: its text.
        line: line of its first line of text.
        output: text of the ``text`` block that follows with nothing between, if there is one.
        file: name of the file it is the content of, from a line such as ```acme.py`:``.
    """

    language: str
    body: str
    line: int
    output: str | None
    file: str


def pages() -> list[Path]:
    """Every page that the project shows to a reader."""
    found = {*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *DOCS.rglob("*.md")}
    return sorted(p for p in found if not any(part[0] == "." for part in p.relative_to(ROOT).parts))


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = path.read_text(encoding="utf-8")
    found = list(_FENCE.finditer(text))
    return [_block(text, found, i) for i in range(len(found))]


def _block(text: str, found: list[re.Match[str]], i: int) -> Block:
    here, output = found[i], None
    if i + 1 < len(found):
        follower = found[i + 1]
        adjacent = not text[here.end() : follower.start()].strip()
        output = follower["body"] if adjacent and follower["info"] == "text" else None
    name = _FILE.search(text[: here.start()].rstrip("\n"))
    line = text[: here.start("body")].count("\n") + 1
    return Block(here["info"].strip(), here["body"], line, output, name["name"] if name else "")


def links(path: Path) -> Iterator[tuple[str, str]]:
    """Targets of the links of a page that stay inside the repository, as (path, anchor)."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    for link in _LINK.finditer(text):
        if "://" not in link["target"]:
            target, _, anchor = link["target"].partition("#")
            yield target, anchor


def anchors(path: Path) -> set[str]:
    """Anchors that GitHub makes for the headings of a page."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    return {
        re.sub(r"[^\w\- ]", "", heading["text"].lower()).replace(" ", "-")
        for heading in _HEADING.finditer(text)
    }
