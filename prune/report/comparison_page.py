"""The comparison as a page, with accuracy against speed as one drawing."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.prune.report.comparison import Comparison, Run
from headwise.prune.report.formats import fixed, in_metric, times
from headwise.prune.report.html import render as render_html
from headwise.prune.report.markdown import render as render_markdown
from headwise.prune.report.scales import Scale, scale_over

LEFT, TOP, ACROSS, DOWN = 70.0, 20.0, 560.0, 320.0


@dataclass(frozen=True)
class Point:
    """A run in the plot, with its intervals."""

    number: str
    x: float
    y: float
    x_low: float
    x_high: float
    y_low: float
    y_high: float
    title: str


@dataclass(frozen=True)
class Plot:
    """Accuracy of the cut model against its speed ratio."""

    points: tuple[Point, ...]
    dense: tuple[tuple[float, float], ...]
    """Where the dense model stands, once for each of its values."""
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    left: float = LEFT
    top: float = TOP
    across: float = ACROSS
    down: float = DOWN


def comparison_html(comparison: Comparison) -> str:
    """The comparison as a page that needs nothing else."""
    return render_html("comparison.html.j2", {"c": comparison, "plot": plot(comparison)})


def comparison_markdown(comparison: Comparison) -> str:
    """The comparison's table as Markdown."""
    return render_markdown("comparison.md.j2", {"c": comparison})


def plot(comparison: Comparison) -> Plot | None:
    """The drawing, or None where no run has both accuracy and speed.

    >>> plot(Comparison((), "accuracy", None, ())) is None
    True
    """
    runs = [run for run in comparison.runs if run.plotted]
    if not runs:
        return None
    x = scale_over([1.0, *(v for run in runs for v in (run.ratio, run.ratio_low, run.ratio_high))])
    y = scale_over([v for run in runs for v in (run.dense, run.cut, run.cut_low, run.cut_high)])
    dense = sorted({run.dense for run in runs if run.dense is not None})
    return Plot(
        points=tuple(_point(run, x, y) for run in runs),
        dense=tuple((_across(x, 1.0), _down(y, value)) for value in dense),
        x_ticks=tuple((_across(x, tick), times(tick)) for tick in x.ticks()),
        y_ticks=tuple((_down(y, tick), in_metric(tick, comparison.metric)) for tick in y.ticks()),
    )


def _point(run: Run, x: Scale, y: Scale) -> Point:
    ratio, cut = run.ratio or 1.0, run.cut or 0.0
    ratio_low, ratio_high = (ratio if v is None else v for v in (run.ratio_low, run.ratio_high))
    cut_low, cut_high = (cut if v is None else v for v in (run.cut_low, run.cut_high))
    title = f"{run.number} · {run.name}: {run.removed} of {run.heads} heads removed, "
    title += f"{in_metric(cut, run.metric)} {run.metric}, {fixed(ratio)} times as fast"
    return Point(
        number=str(run.number),
        x=_across(x, ratio),
        y=_down(y, cut),
        x_low=_across(x, ratio_low),
        x_high=_across(x, ratio_high),
        y_low=_down(y, cut_low),
        y_high=_down(y, cut_high),
        title=title,
    )


def _across(scale: Scale, value: float | int) -> float:
    return round(LEFT + ACROSS * scale.share(value), 1)


def _down(scale: Scale, value: float | int) -> float:
    return round(TOP + DOWN * (1 - scale.share(value)), 1)
