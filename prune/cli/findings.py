"""What an analysis found, a line a role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Any

from headwise.analysis.evidence import Evidence
from headwise.analysis.roles.answers import INAPPLICABLE, Answer, answers

if TYPE_CHECKING:
    from rich.table import Table

#: Heads named in a line.
_NAMED = 4


def findings(evidence: Evidence) -> list[dict[str, Any]]:
    """Every role that was looked for, as plain data; a number that is not known is NaN."""
    return [asdict(one) for one in answers(evidence)]


def findings_table(evidence: Evidence) -> Table:
    """Every role that applies, with the heads that play it and the evidence for the strongest."""
    from headwise.prune.cli.terminal import table

    found = answers(evidence)
    tested = any(one.verdict for one in found)
    heading = [
        "role",
        "played by",
        ">strongest",
        ">score",
        ">must beat",
        "over it, 95 % interval",
        ">q",
        ">reliable",
    ]
    rows = [_row(one, tested) for one in found if one.answer != INAPPLICABLE]
    return table("", [*heading, "silencing it"] if tested else heading, rows)


def left_out(evidence: Evidence) -> str:
    """The roles that do not apply to the model or its texts, as a line."""
    names = [one.role for one in answers(evidence) if one.answer == INAPPLICABLE]
    return f"not applicable: {', '.join(names) or 'none of them'}"


def _row(one: Answer, tested: bool) -> Sequence[str]:
    more = len(one.heads) - _NAMED
    named = ", ".join(one.heads[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    interval = f"{one.low:+.3f} to {one.high:+.3f}" if isfinite(one.low) else ""
    reliable = f"{one.reliability:.2f}" if isfinite(one.reliability) else ""
    q = "<0.001" if one.q < 0.001 else f"{one.q:.3f}"
    cells = [
        one.role,
        named or one.answer,
        one.strongest,
        f"{one.score:.3f}",
        f"{one.chance:.3f}",
        interval,
        q,
        reliable,
    ]
    return [*cells, one.verdict] if tested else cells
