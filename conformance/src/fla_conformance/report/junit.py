"""JUnit XML, as continuous integration services read it."""

from __future__ import annotations

import re
from itertools import groupby
from xml.etree import ElementTree as xml

from fla_conformance.levels import TOLERATED
from fla_conformance.report.document import Report
from fla_conformance.result import Outcome, Result

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ERRORS = frozenset({Outcome.CRASH, Outcome.TIMEOUT})


def render(report: Report) -> str:
    """One test suite for each implementation; whatever stands in a level's way is a failure."""
    root = xml.Element("testsuites", name=f"fla-conformance {report.plugin}")
    for implementation, rows in groupby(report.results, lambda row: row.implementation):
        _suite(root, implementation, list(rows))
    if report.problems:
        suite = xml.SubElement(root, "testsuite", name="run", tests=str(len(report.problems)))
        suite.set("failures", str(len(report.problems)))
        for text in report.problems:
            case = xml.SubElement(suite, "testcase", classname="run", name=_clean(text))
            xml.SubElement(case, "failure", message=_clean(text))
    xml.indent(root)
    return xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: xml.Element, name: str, rows: list[Result]) -> None:
    failed = [row for row in rows if row.outcome not in TOLERATED]
    errors = sum(row.outcome in _ERRORS for row in failed)
    skipped = sum(row.outcome in TOLERATED - {Outcome.PASS} for row in rows)
    suite = xml.SubElement(root, "testsuite", name=name)
    for key, number in (
        ("tests", len(rows)),
        ("failures", len(failed) - errors),
        ("errors", errors),
        ("skipped", skipped),
    ):
        suite.set(key, str(number))
    suite.set("time", f"{sum(row.seconds for row in rows):.3f}")
    for row in rows:
        _case(suite, row)


def _case(suite: xml.Element, row: Result) -> None:
    case = xml.SubElement(suite, "testcase", classname=f"{row.implementation}.{row.level}")
    case.set("name", _clean(row.id))
    case.set("time", f"{row.seconds:.3f}")
    if row.outcome is Outcome.PASS:
        return
    detail = _clean(row.detail)
    if row.outcome in TOLERATED:
        reason = row.expected or row.detail or row.outcome.value
        xml.SubElement(case, "skipped", message=f"{row.outcome.value}: {_clean(reason)}")
        return
    kind = "error" if row.outcome in _ERRORS else "failure"
    headline = f"{row.outcome.value}: {detail.partition(chr(10))[0]}"
    xml.SubElement(case, kind, type=row.outcome.value, message=headline).text = detail


def _clean(text: str) -> str:
    """Without the characters that XML cannot hold, of which a crash may print any."""
    return _NOT_IN_XML.sub("�", text)
