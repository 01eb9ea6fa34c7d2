"""Reports: one document of plain data, and the pages, tables and badges rendered from it."""

from fla_conformance.report.document import SCHEMA, Report, ReportError

__all__ = ["SCHEMA", "Report", "ReportError"]
