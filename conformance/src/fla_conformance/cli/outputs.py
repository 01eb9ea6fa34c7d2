"""Writing a report in every form that was asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fla_conformance.report import Report


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files to write; None for none."""

    json: Path | None = None
    html: Path | None = None
    junit: Path | None = None
    markdown: Path | None = None

    def write(self, report: Report) -> list[Path]:
        """Write them; returns those that were written."""
        from fla_conformance.report import junit, pages

        renderers = {self.html: pages.html, self.junit: junit.render, self.markdown: pages.markdown}
        written = []
        if self.json:
            self.json.parent.mkdir(parents=True, exist_ok=True)
            report.write(self.json)
            written.append(self.json)
        for path, render in renderers.items():
            if path:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(render(report), encoding="utf-8")
                written.append(path)
        return written


def write_cases(report: Report, folder: Path) -> list[Path]:
    """Write the case of every failure, as ``run --case`` reads it back."""
    from fla_conformance.report.pages import file_name

    written = []
    for row in report.failures:
        if row.case:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / file_name(row)
            path.write_text(json.dumps(row.case, indent=2) + "\n", encoding="utf-8")
            written.append(path)
    return written
