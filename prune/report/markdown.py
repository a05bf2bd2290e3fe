"""The report as Markdown: the same content without drawings."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headwise.prune.report.colours import RoleColour, shown_roles
from headwise.prune.report.document import Report
from headwise.prune.report.escape import Verbatim, fenced
from headwise.prune.report.page import page_of
from headwise.prune.report.templating import markdown_environment


def markdown(report: Report) -> str:
    r"""The report as Markdown; all text from data is escaped.

    >>> from headwise.prune.report.document import Verdict
    >>> markdown(Report("analyze", "run", {"id": "a|b"}, Verdict("2 heads."))).splitlines()[0]
    '# a\\|b'
    """
    colours = shown_roles(report.heads)
    values = {"report": report, "grids": letter_grids(report, colours)} | page_of(report, colours)
    return render("report.md.j2", values)


def render(template: str, values: Mapping[str, object]) -> str:
    """A Markdown page from a template, without the blank lines that its commands leave."""
    text = markdown_environment().get_template(template).render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def letter_grids(report: Report, colours: Mapping[str, RoleColour]) -> list[tuple[str, Verbatim]]:
    """The head map in letters, one code block a stack: a row a layer, a column a head."""
    grids = []
    for track in dict.fromkeys(head.track for head in report.heads):
        own = [head for head in report.heads if head.track == track]
        width = max(head.head for head in own) + 1
        margin = len(str(max(head.layer for head in own)))
        column = max(2, len(str(width - 1)) + 1)
        lines = [" " * margin + "".join(f"{i:>{column}}" for i in range(width))]
        for layer in sorted({head.layer for head in own}):
            letters = [" "] * width
            for head in own:
                if head.layer == layer:
                    role = colours.get(head.role)
                    letters[head.head] = "·" if not head.kept else role.letter if role else "o"
            lines.append(f"{layer:>{margin}}" + "".join(f"{letter:>{column}}" for letter in letters))
        grids.append((track, fenced("\n".join(lines))))
    return grids
