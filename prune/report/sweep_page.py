"""The sweep as a page: what each budget costs and gains, with the front drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headwise.analysis.errors import BadInput
from headwise.prune.report.comparison import Comparison, Run, compare
from headwise.prune.report.comparison_page import plot
from headwise.prune.report.cost import significant
from headwise.prune.report.folder import read_json
from headwise.prune.report.formats import in_metric
from headwise.prune.report.html import render as render_html
from headwise.prune.report.json import json
from headwise.prune.report.markdown import render as render_markdown
from headwise.prune.report.plots import LEFT, Frame, Plot, Point, polyline
from headwise.prune.report.scales import Scale, scale_over
from headwise.prune.report.write import write_all

_HEIGHT = 240.0


@dataclass(frozen=True)
class Swept:
    """A sweep's content.

    Attributes:
        comparison: the budgets as runs, small to large.
        fractions: what was asked for, in the same order.
        front: numbers of the budgets that no other beats in both heads and drop.
        path: how the plans came about: `nested`, and `how` in words.
        stability: of the score's ranks.
        gated: the budgets as they were judged before any training; the same runs where nothing was trained.
        trained: how those that were cut were trained afterwards; empty where nothing was.
    """

    comparison: Comparison
    fractions: tuple[float, ...]
    front: tuple[int, ...]
    path: Mapping[str, Any]
    stability: Mapping[str, Any]
    gated: tuple[Run, ...]
    trained: str = ""

    @property
    def recovered(self) -> frozenset[int]:
        """Numbers of the budgets that were trained after the cut."""
        pairs = zip(self.comparison.runs, self.gated, strict=True)
        return frozenset(run.number for run, before in pairs if run is not before)


def write_sweep(folder: str | Path) -> dict[str, Path]:
    """Write sweep.html, sweep.md and sweep-report.json into a sweep's folder; returns their paths by ending.

    Raises:
        BadInput: the folder holds no sweep, or nothing can be written.
    """
    folder = Path(folder)
    found = content(folder)
    values = {"s": found, "c": found.comparison, "stable": told_stability(found.stability), "trained_too": also(found)}
    front = plot(replace(found.comparison, runs=paired(found.comparison.runs)))
    page = values | {"plot": front and replace(front, line=front_line(found)), "course": course(found)}
    texts = {
        "sweep.html": render_html("sweep.html.j2", page),
        "sweep.md": render_markdown("sweep.md.j2", values),
        "sweep-report.json": json(found),
    }
    return write_all(folder, texts)


def content(folder: Path) -> Swept:
    """What a sweep's folder says.

    Raises:
        BadInput: it holds no sweep.
    """
    told = read_json(folder / "sweep.json")
    points = told.get("points")
    if not points:
        raise BadInput(f"{folder}: no sweep: sweep.json is missing; give the folder that `headwise sweep` printed")
    comparison = compare([folder / point["folder"] for point in points])
    recoveries = [read_json(folder / point["folder"] / "recovery.json") for point in points]
    gated = tuple(_before(run, found) for run, found in zip(comparison.runs, recoveries, strict=True))
    # Budgets that were not cut are left out of the one drawing on purpose, and stand in the other.
    notes = tuple(note for note in comparison.notes if not note.startswith("Not in the plot"))
    if told.get("meaning"):
        notes = (f"{comparison.metric.capitalize()}: {told['meaning']}.", *notes)
    return Swept(
        Comparison(comparison.runs, comparison.metric, comparison.setting, notes),
        tuple(float(point["fraction"]) for point in points),
        tuple(number for number, point in enumerate(points, 1) if point["front"]),
        told["path"],
        read_json(folder / points[0]["folder"] / "stability.json"),
        gated,
        next((str(found["kind"]) for found in recoveries if "untrained" in found), ""),
    )


def also(swept: Swept) -> str:
    """What the second figures of budgets that were trained are, as the end of a sentence."""
    if not swept.trained:
        return ""
    return f"; after the cut the chosen budgets were trained ({swept.trained}) and judged again on the same texts"


def _before(run: Run, recovery: Mapping[str, Any]) -> Run:
    """A run with the figures from before its training; the run itself if it was not trained."""
    found = recovery.get("untrained")
    if not found:
        return run
    low, high = found.get("interval") or (None, None)
    cut = found.get("cut") or {}
    return replace(
        run, cut=cut.get("value"), cut_low=cut.get("low"), cut_high=cut.get("high"), drop=found.get("drop"),
        drop_low=low, drop_high=high, upper=found.get("upper"), p=found.get("p"), cost_significant=significant(found),
    )  # fmt: skip


def paired(all_runs: Iterable[Run]) -> tuple[Run, ...]:
    """The same runs with every accuracy's interval that of its difference from the dense model, for drawing.

    All budgets are judged on the same texts: that some texts are hard moves all of them, and is no doubt about which
    is better.
    """
    runs = []
    for run in all_runs:
        if run.dense is None or run.drop_low is None or run.drop_high is None:
            runs.append(run)
            continue
        sign = 1 if run.higher_is_better else -1
        ends = sorted((run.dense - sign * run.drop_low, run.dense - sign * run.drop_high))
        runs.append(replace(run, cut_low=ends[0], cut_high=ends[1]))
    return tuple(runs)


def course(swept: Swept) -> Plot | None:
    """Accuracy against heads removed: every budget, cut or not, or None where nothing was judged.

    Where budgets were trained after the cut, each of them stands there twice: as it was before, open and on the line,
    and as it is now, filled.
    """
    runs = [run for run in paired(swept.gated) if run.cut is not None and run.dense is not None]
    if not runs:
        return None
    after = [run for run in paired(swept.comparison.runs) if run.number in swept.recovered and run.cut is not None]
    most = max(run.removed for run in runs) * 1.04
    y = scale_over([v for run in (*runs, *after) for v in (run.dense, run.cut, run.cut_low, run.cut_high)])
    x_ticks = [tick for tick in scale_over([0.0, most / 1.04]).ticks() if 0 <= tick <= most and tick == int(tick)]
    frame = Frame(Scale(0.0, most), y, _HEIGHT)
    points = [_mark(swept, frame, run, "" if swept.trained else "cut and timed") for run in runs]
    dense = (LEFT, frame.down(runs[0].dense or 0.0))
    return Plot(
        points=(*points, *(_mark(swept, frame, run, f"cut, trained ({swept.trained}) and timed") for run in after)),
        dense=(dense,),
        x_ticks=tuple((frame.across(tick), f"{tick:g}") for tick in x_ticks),
        y_ticks=tuple((frame.down(tick), in_metric(tick, swept.comparison.metric)) for tick in y.ticks()),
        down=_HEIGHT,
        line=polyline([dense, *((point.x, point.y) for point in points)]),
    )


def _mark(swept: Swept, frame: Frame, run: Run, timed: str) -> Point:
    """A budget in the drawing; filled if it is shown as the checkpoint that was `timed`."""
    filled = bool(timed) and run.ratio is not None
    title = f"{swept.fractions[run.number - 1]:g}: {run.removed} of {run.heads} heads removed, "
    title += f"{in_metric(run.cut, run.metric)} {run.metric}, {timed if filled else 'gated and judged'}"
    return frame.point(run, (run.removed, None, None), title, filled=filled)


def front_line(swept: Swept) -> str:
    """The budgets that are best for their speed, with the dense model, as points of a polyline; "" under two."""
    drawn: Plot | None = plot(swept.comparison)
    if drawn is None or len(drawn.dense) != 1:
        return ""
    # On the page, right is faster and up is better unless the metric is one that should be low.
    up = 1 if swept.comparison.runs[0].higher_is_better else -1
    places = sorted({drawn.dense[0], *((point.x, point.y) for point in drawn.points)}, key=lambda p: (-p[0], up * p[1]))
    best: list[tuple[float, float]] = []
    for x, y in places:
        if not best or up * y < up * best[-1][1]:
            best.append((x, y))
    return polyline(reversed(best)) if len(best) > 1 else ""


def told_stability(found: Mapping[str, Any]) -> str:
    """The stability of a score in a sentence.

    >>> told_stability({"score": "fisher", "tau": 0.9, "low": 0.85, "high": 0.94, "how": "texts drawn again"})
    'Ranks by fisher: Kendall τ 0.90 (0.85 to 0.94) with those on other texts (texts drawn again).'
    """
    if not found:
        return ""
    if found.get("tau") is None:
        return f"Ranks by {found['score']}: how they depend on the texts is not known ({found['how']})."
    span = f"{found['low']:.2f} to {found['high']:.2f}"
    return (
        f"Ranks by {found['score']}: Kendall τ {found['tau']:.2f} ({span}) with those on other texts ({found['how']})."
    )
