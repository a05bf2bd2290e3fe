"""The cost: how far the metric moved and how sure that is, as part of a sentence and as a figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwise.prune.report.document import Figure
from headwise.prune.report.formats import Number, in_metric, in_points, p_is, unit

SIGNIFICANT = 0.05


def significant(accuracy: Mapping[str, Any]) -> bool:
    """Whether the data tell the two models apart: p < 0.05, or an interval that leaves out 0.

    >>> significant({"p": 0.3}), significant({"interval": [0.01, 0.03]})
    (False, True)
    """
    if accuracy.get("p") is not None:
        return bool(accuracy["p"] < SIGNIFICANT)
    low, high = accuracy.get("interval") or (None, None)
    return low is not None and high is not None and (low > 0 or high < 0)


def cost_in_words(accuracy: Mapping[str, Any]) -> str:
    """The change of the metric as part of a sentence.

    >>> cost_in_words({"metric": "accuracy", "drop": 0.02, "p": 0.001})
    'accuracy 2.0 points worse'
    >>> cost_in_words({"metric": "accuracy", "drop": 0.004, "p": 0.3})
    'no significant difference in accuracy'
    """
    metric = str(accuracy.get("metric", "accuracy"))
    drop = accuracy.get("drop")
    if drop is None:
        return f"{metric} was not compared"
    if not significant(accuracy):
        return f"no significant difference in {metric}"
    return f"{metric} {_moved(drop, metric)}"


def bound_in_words(upper: Number, metric: str) -> str:
    """The largest drop that is possible; where even that is none, how much better the cut model surely is.

    >>> bound_in_words(0.038, "accuracy"), bound_in_words(-0.04, "accuracy")
    ('the drop that the data cannot exclude: 3.8 points', 'surely better, by at least 4.0 points')
    """
    if upper is not None and upper < 0:
        return f"surely better, by at least {with_unit(-upper, metric)}"
    return f"the drop that the data cannot exclude: {with_unit(upper, metric)}"


def no_spread(accuracy: Mapping[str, Any]) -> str:
    """Why an interval has no width, where it has none.

    >>> no_spread({"interval": [0.0, 0.0]})
    'no example differs, so resampling shows no spread: only the drop that the data cannot exclude allows for further texts'
    """
    low, high = accuracy.get("interval") or (None, None)
    if low is None or low != high:
        return ""
    which = "every example differs by as much" if low else "no example differs"
    return (
        f"{which}, so resampling shows no spread: only the drop that the data cannot exclude allows for further texts"
    )


def cost(accuracy: Mapping[str, Any]) -> Figure:
    """How much worse or better the metric became, with all that keeps the number honest."""
    metric = str(accuracy.get("metric", "accuracy"))
    drop, p = accuracy.get("drop"), accuracy.get("p")
    low, high = accuracy.get("interval") or (None, None)
    dense, cut = accuracy.get("dense", {}).get("value"), accuracy.get("cut", {}).get("value")
    details = [f"{metric} {in_metric(dense, metric)} → {in_metric(cut, metric)}"]
    details += [str(accuracy["meaning"])] if accuracy.get("meaning") else []
    details.append(
        no_spread(accuracy) or f"95 % interval of the drop {in_points(low, metric)} to {in_points(high, metric)}"
    )
    details.append(bound_in_words(accuracy.get("upper"), metric))
    if not significant(accuracy):
        details.append(f"no significant difference ({p_is(p)})")
    tone = "plain" if drop is None or not significant(accuracy) else "bad" if drop > 0 else "good"
    return Figure("Cost", _moved(drop, metric), tuple(details), tone)


def with_unit(value: Number, metric: str) -> str:
    """A difference with what it is counted in.

    >>> with_unit(0.02, "accuracy"), with_unit(2.5, "perplexity")
    ('2.0 points', '2.50 perplexity')
    """
    return f"{in_points(value, metric)} {unit(metric)}".rstrip()


def _moved(drop: Number, metric: str) -> str:
    """How much worse or better; a metric that is not read in points is named beside the number."""
    if drop is None:
        return "not compared"
    if drop == 0:
        return "no drop"
    points = " points" if unit(metric) == "points" else ""
    return f"{in_points(abs(drop), metric)}{points} {'worse' if drop > 0 else 'better'}"
