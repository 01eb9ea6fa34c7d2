"""What people read: every failure with the means to see it again, and nothing from outside."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from fla_conformance.case import Case
from fla_conformance.report import Report, badge, junit, pages, plots
from fla_conformance.report.plots import LEFT, WIDTH, position
from fla_conformance.result import Margin, Outcome
from rows import case, margin, plugin_row, report, row

BAD = row(
    "L2", Outcome.FAIL_NUMERIC, of=case(seed=3), margin=margin(3.0), detail="<b>dq</b> & o\x00"
)
REPORT = report(
    plugin_row(),
    row("L1", margin=margin(0.4)),
    BAD,
    row("L1", Outcome.XFAIL, of=case(seed=1), expected="the | compiler"),
    row("L3", Outcome.FAIL_LAW, law="pack"),
    row("L3", law="split"),
    row("L1", Outcome.REFUSED_DECLARED, of=case(seed=2)),
    problems=("expectation 1 expired",),
)


class Page(HTMLParser):
    """Tags that are open, texts, and where the page points to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br", "link"):
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_well_formed_and_stands_alone() -> None:
    page = Page(pages.html(REPORT))
    assert page.open == []
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert "@import" not in page.text
    assert "url(" not in page.text


def test_html_escapes_what_plugins_say() -> None:
    text = pages.html(REPORT)
    assert "<b>dq</b>" not in text
    assert "&lt;b&gt;dq&lt;/b&gt; &amp; o" in text
    assert "a &lt;fast&gt; chip" in text


def test_html_shows_every_failure_with_its_command_and_case() -> None:
    text = pages.html(REPORT)
    for failure in REPORT.failures:
        assert failure.id in text
    encoded = re.findall(r"data:application/json;base64,([^\"]+)", text)
    cases = [Case.from_json(json.loads(base64.b64decode(data))) for data in encoded]
    assert cases == [Case.from_json(failure.case) for failure in REPORT.failures]
    assert "expectation 1 expired" in text
    assert "the | compiler" in text


def test_command_names_the_check_and_where_it_ran() -> None:
    words = shlex.split(pages.reproduce(REPORT, BAD))
    assert words[:3] == ["fla-conformance", "run", "acme"]
    assert words[words.index("--only") + 1] == BAD.id
    assert words[words.index("--op") + 1] == "acme:gla#chunk"
    assert words[words.index("--device") + 1] == "npu:0"
    assert words[words.index("--level") + 1] == "L2"


def test_html_gives_the_command_as_a_shell_takes_it() -> None:
    words = ["fla-conformance", "run", "acme", "--op", "linear_attn*"]
    made = report(plugin_row())
    page = Page(pages.html(replace(made, header={**made.header, "argv": words})))
    assert "fla-conformance run acme --op 'linear_attn*'" in page.text


def test_html_of_an_empty_run() -> None:
    page = Page(pages.html(report(complete=False)))
    assert "No implementation was checked." in page.text
    assert "reaches no level" in page.text
    assert "Every check ended as it should" not in page.text


def test_verdict_follows_the_results() -> None:
    assert "Not every check ended as it should" in pages.html(REPORT)
    assert "Every check ended as it should" in pages.html(report(plugin_row(), row()))


@pytest.mark.parametrize("render", [pages.html, pages.markdown])
def test_a_cell_says_how_many_of_how_many_failed(render: Callable[[Report], str]) -> None:
    failed = row("L1", Outcome.FAIL_NUMERIC, of=case(seed=3), margin=margin(3.0))
    assert "1 of 2 failed" in render(report(plugin_row(), row("L1"), failed))


def test_markdown_tables_have_as_many_cells_as_headings() -> None:
    lines = pages.markdown(REPORT).splitlines()
    widths: list[int] = []
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("|"):
            cells = len(re.findall(r"(?<!\\)\|", line))
            if not before.startswith("|"):
                assert before == ""
                widths.append(cells)
            assert cells == widths[-1], line
    assert len(widths) == 3
    assert "the \\| compiler" in "\n".join(lines)


def test_junit_counts_what_it_holds() -> None:
    root = ElementTree.fromstring(junit.render(REPORT))
    suites = {suite.get("name"): suite for suite in root}
    gla = suites["acme:gla#chunk"]
    assert [gla.get(k) for k in ("tests", "failures", "errors", "skipped")] == ["6", "2", "0", "2"]
    assert len(gla.findall("testcase/failure")) == 2
    assert len(gla.findall("testcase/skipped")) == 2
    assert suites["run"].find("testcase/failure") is not None
    (text,) = [f.text for f in gla.iter("failure") if f.get("type") == "fail.numeric"]
    assert text == "<b>dq</b> & o\N{REPLACEMENT CHARACTER}"


def test_junit_tells_a_crash_from_a_failure() -> None:
    root = ElementTree.fromstring(junit.render(report(row("L1", Outcome.CRASH))))
    assert root[0].get("errors") == "1"
    assert root.find("testsuite/testcase/error") is not None


@pytest.mark.parametrize(
    ("size", "share"), [(1e-3, 0.0), (10.0, 1.0), (0.1, 0.5), (0.0, 0.0), (1e9, 1.0)]
)
def test_axis_is_logarithmic_and_ends(size: float, share: float) -> None:
    assert position(size) == pytest.approx(LEFT + share * WIDTH, abs=0.1)


def test_a_dot_is_good_exactly_when_its_case_passed() -> None:
    wild = row(
        "L1", Outcome.FAIL_NUMERIC, of=case(seed=9), margin=Margin(0.1, float("nan"), "o", 1)
    )
    good = [row("L1", of=case(seed=seed), margin=margin(0.5)) for seed in range(3)]
    (plot,) = plots.plots([wild, *good])
    (strip,) = plot.strips
    assert [dot.good for dot in strip.dots] == [True, True, True, False]
    assert all(dot.x < plot.limit for dot in strip.dots[:3])
    assert strip.dots[3].x > plot.limit
    assert (strip.worst, strip.worst_id) == ("not finite", wild.id)
    assert len({(dot.x, dot.y) for dot in strip.dots}) == 4  # none hides another


def test_badge_says_what_the_weakest_implementation_reaches() -> None:
    half = case(dtype="float16")
    found = report(
        plugin_row(),
        row("L1"),
        row("L2"),
        row("L1", variant="other"),
        row("L2", Outcome.CRASH, variant="other"),
        row("L1", of=half),
        row("L2", of=half),
    ).standings
    assert re.fullmatch(r"gla@\d+ · L2 fp16 · L1 bf16 · n1", badge.text(found, "gla"))
    svg = ElementTree.fromstring(badge.render(found, "gla"))
    texts = [node.text for node in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["fla-kernels", badge.text(found, "gla")]
    assert badge.file_name("acme", "gla") == "acme-gla.svg"
    with pytest.raises(LookupError, match="nothing on contract 'kda'"):
        badge.text(found, "kda")


def test_margins_are_numbers_for_people() -> None:
    found = [plots.shown(x) for x in (0.0123, 1.26, 9.96, 106.0, 2.85e5, float("inf"))]
    assert found == ["0.012", "1.3", "10", "106", "2.8e+05", "not finite"]
