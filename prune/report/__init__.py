"""The report: one page that a colleague can read, as HTML, Markdown and JSON from the same content."""

from headwise.prune.report.comparison import Comparison, compare, write_comparison
from headwise.prune.report.content import content
from headwise.prune.report.document import Report
from headwise.prune.report.sweep_page import write_sweep
from headwise.prune.report.write import write

__all__ = ["Comparison", "Report", "compare", "content", "write", "write_comparison", "write_sweep"]
