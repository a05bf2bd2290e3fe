"""The choice: what as many heads drawn at random would have cost, and why two ways to judge that may disagree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwise.prune.report import formats
from headwise.prune.report.cost import with_unit
from headwise.prune.report.formats import Number


def chance(accuracy: Mapping[str, Any]) -> list[str]:
    """What as many heads drawn at random would have cost, beside the plan's, in paragraphs.

    >>> found = {"all": 0.8, "plan": 0.75, "drawn": [0.7, 0.6], "mean": 0.65, "spread": 0.07, "worse": 2}
    >>> chance({"metric": "accuracy", "chance": {**found, "n": 256, "heads": 24}})[0][:68]
    'Is the choice worth it? With 24 heads silenced and nothing repaired,'
    >>> chance({"metric": "accuracy", "chance": {**found, "heads": 24, "repair": "bias"}})[0][24:72]
    'With 24 heads silenced and the rest repaired, as'
    """
    found = accuracy.get("chance")
    if not isinstance(found, Mapping) or not found.get("drawn"):
        return []
    metric = str(accuracy.get("metric", ""))
    shown = {name: formats.in_metric(found.get(name), metric) for name in ("all", "plan", "mean")}
    low, high = (formats.in_metric(end(found["drawn"]), metric) for end in (min, max))
    repaired = "nothing" if found.get("repair", "none") == "none" else "the rest"
    heads = formats.plural(int(found.get("heads") or 0), "head")
    said = (
        f"Is the choice worth it? With {heads} silenced and {repaired} repaired, as the plan chose them: "
        f"{shown['plan']}; drawn at random: {shown['mean']} on average, {low} to {high} "
        f"in {len(found['drawn'])} draws, {found.get('worse')} of them worse than the plan; with all heads: "
        f"{shown['all']} ({metric}, {formats.count(found.get('n'))} examples).{_moved(found.get('moved'))}"
    )
    return [said, *_why_both(accuracy, found, metric)]


def _moved(found: Any) -> str:
    """How far outputs are from the dense model's, which few answers do not show; what luck would make of as few draws.

    >>> _moved({"plan": 0.01, "drawn": [0.03, 0.02]})[56:120]
    '0.0100 nats as the plan chose, 0.0200 to 0.0300 drawn at random.'
    """
    if not isinstance(found, Mapping) or not found.get("drawn"):
        return ""
    drawn, plan = found["drawn"], found.get("plan")
    shown, low, high = (formats.number(value) for value in (plan, min(drawn), max(drawn)))
    nearest = plan is not None and plan < min(drawn)
    luck = (
        f" One more draw would be nearer than these {len(drawn)} by luck once in {len(drawn) + 1} times."
        if nearest
        else ""
    )
    return (
        f" Divergence of the outputs from the dense model's (KL): {shown} nats as the plan chose, {low} to {high} drawn "
        f"at random.{luck}"
    )


def _why_both(accuracy: Mapping[str, Any], found: Mapping[str, Any], metric: str) -> list[str]:
    """Why the metric prefers what the divergence does not, where its differences are smaller than it can tell.

    The interval is that of the drop, whose examples are at least as many: draws are known no better.

    >>> moved = {"plan": 0.01, "drawn": [0.03, 0.02]}
    >>> facts = {"interval": [-0.02, 0.04], "n": 382}
    >>> _why_both(facts, {"plan": 0.82, "drawn": [0.83, 0.83], "worse": 0, "moved": moved, "n": 256}, "accuracy")[0][:57]
    'Accuracy and divergence do not favour the same choice. By'
    >>> _why_both(facts, {"plan": 0.82, "drawn": [0.7, 0.7], "worse": 2, "moved": moved}, "accuracy")
    []
    """
    moved, plan, worse = (found.get(name) for name in ("moved", "plan", "worse"))
    low, high = accuracy.get("interval") or (None, None)
    if not isinstance(moved, Mapping) or moved.get("plan") is None:
        return []
    if plan is None or worse is None or low is None or high is None:
        return []
    # Draws that the plan beats, less those that beat it: one that is equal speaks for neither.
    by_metric = 2 * worse - sum(value != plan for value in found["drawn"])
    by_divergence = sum((value > moved["plan"]) - (value < moved["plan"]) for value in moved.get("drawn") or ())
    most, known = max(abs(value - plan) for value in found["drawn"]), (high - low) / 2
    if by_metric * by_divergence >= 0 or most >= known:
        return []
    return [
        f"{metric[:1].upper()}{metric[1:]} and divergence do not favour the same choice. By {metric} the draws are within "
        f"{with_unit(most, metric)}{_answers(most, found.get('n'), metric)} of the plan, less than it tells apart here: "
        f"the drop above is known to ±{with_unit(known, metric)}. Divergence counts how far the outputs of every text "
        "moved, also where the answer stays."
    ]


def _answers(most: float | int, n: Number, metric: str) -> str:
    """A difference in accuracy as a number of answers."""
    if metric not in ("accuracy", "agreement") or not n or abs(most * n - round(most * n)) > 1e-6:
        return ""
    return f" ({round(most * n)} of {formats.plural(int(n), 'answer')})"
