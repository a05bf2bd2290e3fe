"""The report: one page that a colleague can read, as HTML, Markdown and JSON from the same content."""

from headwise.prune.report.again import unfinished, write_again
from headwise.prune.report.comparison import Comparison, compare, write_comparison
from headwise.prune.report.content import content
from headwise.prune.report.document import Report
from headwise.prune.report.sweep_page import write_sweep
from headwise.prune.report.write import write

__all__ = [
    "Comparison",
    "Report",
    "compare",
    "content",
    "unfinished",
    "write",
    "write_again",
    "write_comparison",
    "write_sweep",
]
