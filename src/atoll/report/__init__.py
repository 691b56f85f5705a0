"""Pictures of an answer: one HTML file (`page`), and traces for Perfetto (`trace`)."""

from atoll.report.folder import open_folder
from atoll.report.page import write_report
from atoll.report.trace import plan_trace, search_trace, write_trace

__all__ = [
    "open_folder",
    "plan_trace",
    "search_trace",
    "write_report",
    "write_trace",
]
