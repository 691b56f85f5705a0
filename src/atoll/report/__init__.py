"""Pictures of an answer: one HTML file (`page`), and traces for Perfetto (`trace`)."""

from atoll.report.folder import Source, open_folder
from atoll.report.page import render, write_report
from atoll.report.trace import plan_trace, search_trace, write_trace

__all__ = [
    "Source",
    "open_folder",
    "plan_trace",
    "render",
    "search_trace",
    "write_report",
    "write_trace",
]
