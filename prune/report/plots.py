"""Plots of accuracy against something else: a frame with two axes, and runs as marks with their intervals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headwise.prune.report.comparison import Run
from headwise.prune.report.formats import Number
from headwise.prune.report.scales import Scale

LEFT, TOP, ACROSS = 70.0, 20.0, 560.0


@dataclass(frozen=True)
class Point:
    """A run in a plot, with its intervals."""

    number: str
    x: float
    y: float
    x_low: float
    x_high: float
    y_low: float
    y_high: float
    title: str
    filled: bool = True


@dataclass(frozen=True)
class Plot:
    """A plot as the templates draw it; `line` joins places of it, as points of a polyline."""

    points: tuple[Point, ...]
    dense: tuple[tuple[float, float], ...]
    """Where the dense model stands, once for each of its values."""
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    down: float
    line: str = ""
    left: float = LEFT
    top: float = TOP
    across: float = ACROSS


@dataclass(frozen=True)
class Frame:
    """Where values stand in a plot that is `height` high.

    >>> frame = Frame(Scale(1.0, 2.0), Scale(0.0, 1.0), 100.0)
    >>> frame.across(1.5), frame.down(0.25)
    (350.0, 95.0)
    """

    x: Scale
    y: Scale
    height: float

    def across(self, value: float | int) -> float:
        """How far to the right."""
        return round(LEFT + ACROSS * self.x.share(value), 1)

    def down(self, value: float | int) -> float:
        """How far below the top."""
        return round(TOP + self.height * (1 - self.y.share(value)), 1)

    def point(self, run: Run, x: tuple[Number, Number, Number], title: str, *, filled: bool = True) -> Point:
        """A run's accuracy with its interval at `x`, which is a value with its ends, where it has any."""
        value = run.cut or 0.0
        middle = x[0] or 0.0
        left, right = (self.across(middle if end is None else end) for end in x[1:])
        low, high = (self.down(value if end is None else end) for end in (run.cut_low, run.cut_high))
        return Point(str(run.number), self.across(middle), self.down(value), left, right, low, high, title, filled)


def polyline(places: Iterable[tuple[float, float]]) -> str:
    """Places as the points of a polyline.

    >>> polyline([(70.0, 95.0), (350.0, 20.0)])
    '70.0,95.0 350.0,20.0'
    """
    return " ".join(f"{x},{y}" for x, y in places)
