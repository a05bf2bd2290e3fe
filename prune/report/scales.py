"""Small drawings inside tables: a value with its interval on an axis that all rows share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwise.prune.report.doubt import noise
from headwise.prune.report.formats import Number

WIDTH = 260.0
EDGE = 14.0


@dataclass(frozen=True)
class Scale:
    """A linear axis from `low` to `high` drawn over `WIDTH` units.

    >>> Scale(1.0, 2.0).x(1.5)
    130.0
    """

    low: float
    high: float

    def share(self, value: float | int) -> float:
        """How far along the axis a value stands, 0 to 1; values beyond the axis stand at its end."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def x(self, value: float | int) -> float:
        """Where a value stands in a table's drawing."""
        return round(EDGE + (WIDTH - 2 * EDGE) * self.share(value), 1)

    def ticks(self) -> tuple[float, ...]:
        """Four to eight round numbers on the axis."""
        raw = (self.high - self.low) / 6
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(m * size for m in (1, 2, 5, 10) if m * size >= raw)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return tuple(round(i * step, 10) + 0.0 for i in range(first, last + 1))


def scale_over(values: Sequence[Number]) -> Scale:
    """An axis that shows all values with some room.

    >>> scale_over([1.0, 1.2]).low < 1.0 < 1.2 < scale_over([1.0, 1.2]).high
    True
    """
    known = [float(v) for v in values if v is not None and math.isfinite(v)] or [0.0, 1.0]
    low, high = min(known), max(known)
    room = (high - low) * 0.08 or max(abs(high), 1.0) * 0.05
    return Scale(low - room, high + room)


def speed_scale(rows: Sequence[Mapping[str, Any]]) -> Scale:
    """The axis of speed ratios: holds 1, every interval, every operation ratio and what the machine makes by itself.

    >>> axis = speed_scale([{"ratio": {"median": 1.1}, "drift": {"low": 0.5, "high": 1.1}}])
    >>> 0 <= axis.x(0.5) < axis.x(2.0) <= WIDTH
    True
    """
    values: list[Number] = [1.0]
    for row in rows:
        values += [
            row["ratio"].get("low"),
            row["ratio"].get("high"),
            row["ratio"]["median"],
            row.get("operation_ratio"),
            *(noise(row) or ()),
        ]
    return scale_over(values)


def drop_scale(accuracy: Mapping[str, Any], limit: Number) -> Scale:
    """The axis of the drop: holds 0, the interval, the bound and the recipe's limit."""
    return scale_over([0.0, *(accuracy.get("interval") or ()), accuracy.get("drop"), accuracy.get("upper"), limit])
