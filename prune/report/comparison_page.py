"""The comparison as a page, with accuracy against speed as one drawing."""

from __future__ import annotations

from headwise.prune.report.comparison import Comparison
from headwise.prune.report.formats import fixed, in_metric, times
from headwise.prune.report.html import render as render_html
from headwise.prune.report.markdown import render as render_markdown
from headwise.prune.report.plots import Frame, Plot
from headwise.prune.report.scales import scale_over

_HEIGHT = 320.0


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
    frame, points = Frame(x, y, _HEIGHT), []
    for run in runs:
        title = f"{run.number} · {run.name}: {run.removed} of {run.heads} heads removed, "
        title += f"{in_metric(run.cut, run.metric)} {run.metric}, {fixed(run.ratio)} times as fast"
        points.append(frame.point(run, (run.ratio, run.ratio_low, run.ratio_high), title))
    dense = sorted({run.dense for run in runs if run.dense is not None})
    return Plot(
        points=tuple(points),
        dense=tuple((frame.across(1.0), frame.down(value)) for value in dense),
        x_ticks=tuple((frame.across(tick), times(tick)) for tick in x.ticks()),
        y_ticks=tuple((frame.down(tick), in_metric(tick, comparison.metric)) for tick in y.ticks()),
        down=_HEIGHT,
    )
