"""Tried: the removals that were judged, from small to large, on the way to the most that stays under a drop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwise.prune.report.document import Report
from headwise.prune.report.formats import count, in_points


def tried(report: Report) -> list[tuple[str, str, str, str]]:
    """(heads, drop, what the data cannot exclude, whether it is sure to keep the limit) of each step, if a drop was asked for.

    >>> from headwise.prune.report.document import Verdict
    >>> steps = [{"heads": 3, "drop": 0.01, "upper": 0.04, "passed": False}]
    >>> tried(Report("prune", "run", {}, Verdict(""), plan={"expected": {"reach": steps}}))
    [('3', '0.0100', '0.0400', 'no: the walk ends here')]
    """
    metric = str(report.accuracy.get("metric") or "")
    return [
        (
            count(step["heads"]),
            in_points(step["drop"], metric),
            in_points(step["upper"], metric),
            "yes" if step["passed"] else "no: the walk ends here",
        )
        for step in _steps(report)
    ]


def ended(report: Report) -> str:
    """Why no larger removal was judged, where the largest that was is sure to keep the limit.

    >>> from headwise.prune.report.document import Verdict
    >>> steps = [{"heads": 3, "drop": 0.01, "upper": 0.02, "passed": True}]
    >>> ended(Report("prune", "run", {}, Verdict(""), plan={"expected": {"reach": steps}}))
    'Every step is sure to keep the limit; the walk ended where the recipe lets no more heads go (remove, keep).'
    """
    steps = _steps(report)
    if not steps or not steps[-1]["passed"]:
        return ""
    return "Every step is sure to keep the limit; the walk ended where the recipe lets no more heads go (remove, keep)."


def foreseen(report: Report) -> dict[str, Any]:
    """What the plan expects, less what `tried` tells.

    >>> from headwise.prune.report.document import Verdict
    >>> foreseen(Report("prune", "run", {}, Verdict(""), score_name="gates", plan={"expected": {"cost": 1.0, "reach": []}}))
    {'cost by gates': 1.0}
    """
    found = report.plan.get("expected")
    if not isinstance(found, Mapping):
        return {}
    # What a cost counts is the score's own business: a loss, a rank, or nothing that has a unit.
    names = {"cost": f"cost by {report.score_name}"} if report.score_name else {}
    return {names.get(str(name), str(name)): part for name, part in found.items() if name != "reach"}


def _steps(report: Report) -> list[Mapping[str, Any]]:
    found = report.plan.get("expected")
    steps = found.get("reach") if isinstance(found, Mapping) else None
    return [step for step in steps if _whole(step)] if isinstance(steps, list) else []


def _whole(step: Any) -> bool:
    """Whether a plan that may have been edited by hand says all of a step."""
    if not isinstance(step, Mapping):
        return False
    drop, upper = step.get("drop"), step.get("upper")
    numbers = isinstance(drop, int | float) and isinstance(upper, int | float | None)
    return numbers and isinstance(step.get("heads"), int) and isinstance(step.get("passed"), bool)
