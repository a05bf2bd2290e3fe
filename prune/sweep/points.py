"""Points of a sweep: what came out at each budget, and which no other beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

#: Which budgets are cut and timed: those that no other beats, every one, none, or these shares.
Which = Literal["front", "all", "none"] | Sequence[float]


@dataclass(frozen=True)
class Figures:
    """How a model without heads does on the evaluation texts.

    Attributes:
        value: of the task's metric.
        drop: in the task's metric, from the dense model.
        low: lower end of the drop's interval.
        high: upper end.
        upper: what the data cannot exclude as the drop.
    """

    value: float | None
    drop: float
    low: float | None
    high: float | None
    upper: float | None


@dataclass(frozen=True)
class Point:
    """One budget of a sweep.

    Attributes:
        fraction: share of the heads that was to go.
        heads: heads that go.
        folder: its run folder.
        value: of the task's metric without the heads, gated and repaired, before any training.
        drop: of the same.
        low: lower end of the drop's interval.
        high: upper end.
        upper: what the data cannot exclude as the drop.
        front: whether no other budget removes as much at a smaller drop, before any training.
        chosen: whether it was cut and timed.
        recovered: figures after the training that the recipe's `recover` says; None where nothing was trained.
    """

    fraction: float
    heads: int
    folder: Path
    value: float | None
    drop: float
    low: float | None
    high: float | None
    upper: float | None
    front: bool = False
    chosen: bool = False
    recovered: Figures | None = None


def figures(accuracy: Mapping[str, Any]) -> Figures:
    """The figures in a comparison with the dense model.

    >>> figures({"cut": {"value": 0.8}, "drop": 0.1, "interval": None, "upper": None}).drop
    0.1
    """
    low, high = accuracy.get("interval") or (None, None)
    return Figures(accuracy["cut"]["value"], float(accuracy["drop"]), low, high, accuracy["upper"])


def chosen(points: Sequence[Point], which: Which) -> list[Point]:
    """The points, with who is on the front and who is to be cut.

    >>> made = [
    ...     Point(f, h, Path(), 0.9, drop, None, None, drop) for f, h, drop in ((0.2, 2, 0.1), (0.4, 4, 0.0), (0.6, 6, 0.2))
    ... ]
    >>> [point.chosen for point in chosen(made, "front")], [point.front for point in chosen(made, [0.2])]
    ([False, True, True], [False, True, True])
    """
    found = []
    for point in points:
        front = not any(_beats(other, point) for other in points)
        wanted = {"front": front, "all": True, "none": False}[which] if isinstance(which, str) else None
        found.append(replace(point, front=front, chosen=point.fraction in which if wanted is None else wanted))
    return found


def _beats(one: Point, other: Point) -> bool:
    """At least as good in both, better in one."""
    return one.heads >= other.heads and one.drop <= other.drop and (one.heads, -one.drop) != (other.heads, -other.drop)
