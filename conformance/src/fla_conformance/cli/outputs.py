"""Writing a report in every form that was asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fla_core.errors import FlaError

if TYPE_CHECKING:
    from fla_conformance.report import Report


class OutputError(FlaError, ValueError):
    """A file that was asked for cannot be written."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files to write; None for none."""

    json: Path | None = None
    html: Path | None = None
    junit: Path | None = None
    markdown: Path | None = None

    def write(self, report: Report) -> list[Path]:
        """Write them; returns those that were written.

        Raises:
            OutputError: one cannot be written.
        """
        from fla_conformance.report import junit, pages

        renderers = {self.html: pages.html, self.junit: junit.render, self.markdown: pages.markdown}
        written = []
        if self.json:
            with _writing(self.json):
                report.write(self.json)
            written.append(self.json)
        for path, render in renderers.items():
            if path:
                with _writing(path):
                    path.write_text(render(report), encoding="utf-8")
                written.append(path)
        return written

    def check(self) -> None:
        """Make the folders of the files, and look whether these can be written.

        Raises:
            OutputError: one cannot.
        """
        for path in (self.json, self.html, self.junit, self.markdown):
            if path:
                with _writing(path):
                    # Leaves a file that is there as it is, and no file where there is none.
                    existed = path.exists()
                    path.open("a", encoding="utf-8").close()
                if not existed:
                    path.unlink()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from None


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
