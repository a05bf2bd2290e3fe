"""Intervals of numbers summed per cell: the bootstrap over cells.

A *cell* is a group of texts that is resampled as one (a template, or the texts that share a content hash):
whatever was summed per cell, `[cells, …]`, is enough for every interval here, so memory does not grow with
the data. NaN means "not measured": it is left out and counted. With no observation every answer is NaN, with
one the value is known and its interval is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headwise.analysis.errors import BadInput

Floats = NDArray[np.float64]
Seed = int | np.random.Generator

#: Resampled numbers held in memory at a time.
_BUDGET = 4_000_000


@dataclass(frozen=True)
class Interval:
    """A value with its two-sided interval and its one-sided upper bound, numbers or arrays alike.

    Attributes:
        value: the statistic of the data themselves.
        low: lower end of the two-sided interval.
        high: upper end of the two-sided interval.
        upper: one-sided upper bound at the same level.
        n: observations used.
        excluded: observations left out because they were NaN.
    """

    value: Any
    low: Any
    high: Any
    upper: Any
    n: Any
    excluded: Any = 0


def bootstrap_interval(values: ArrayLike, *, seed: Seed = 0, resamples: int = 2000, level: float = 0.95) -> Interval:
    """The mean over the first axis with its percentile bootstrap interval (Efron 1979).

    Args:
        values: `[n]` or `[n, head]`; NaN entries are excluded from their own column.
        seed: of the resampling.
        resamples: bootstrap draws.
        level: of the two-sided interval and of the one-sided bound.

    >>> found = bootstrap_interval([1.0, 2.0, 3.0, float("nan")], seed=1)
    >>> float(found.value), int(found.n), int(found.excluded)
    (2.0, 3, 1)
    """
    numbers = np.asarray(values, dtype=np.float64)
    present = ~np.isnan(numbers)
    found = ratio_interval(np.where(present, numbers, 0.0), present, seed=seed, resamples=resamples, level=level)
    return Interval(found.value, found.low, found.high, found.upper, present.sum(axis=0), (~present).sum(axis=0))


def ratio_interval(
    numerators: ArrayLike,
    denominators: ArrayLike,
    *,
    seed: Seed = 0,
    resamples: int = 2000,
    level: float = 0.95,
) -> Interval:
    """A ratio of sums over cells with its percentile interval from resampled cells.

    Args:
        numerators: `[cells]` or `[cells, head]`, sums per cell.
        denominators: the same shape, or `[cells]` for all heads.
        seed: of the resampling.
        resamples: bootstrap draws.
        level: of the two-sided interval and of the one-sided bound.

    Raises:
        BadInput: the shapes do not fit together.

    >>> ratio_interval([1.0, 3.0], [2.0, 2.0]).value.item()
    1.0
    """
    above = np.asarray(numerators, dtype=np.float64)
    below = np.asarray(denominators, dtype=np.float64)
    if below.ndim < above.ndim and below.shape == above.shape[: below.ndim]:
        below = np.broadcast_to(below[:, None], above.shape)
    if above.shape != below.shape or above.ndim not in (1, 2):
        raise BadInput(
            f"numerators {above.shape} and denominators {below.shape}: expected [cells, head] and the same, or [cells]"
        )
    sums = np.stack([above, below], axis=1)
    return cell_interval(sums, ratio_of_sums, seed=seed, resamples=resamples, level=level, counts=below != 0)


def ratio_of_sums(sums: Floats) -> Floats:
    """Quantity 0 over quantity 1 of `[resample, quantity(, head)]`; NaN where the latter is 0.

    >>> ratio_of_sums(np.array([[3.0, 2.0], [1.0, 0.0]])).tolist()
    [1.5, nan]
    """
    below = np.where(sums[:, 1] != 0, sums[:, 1], np.nan)
    return np.asarray(sums[:, 0] / below)


def cell_interval(
    sums: ArrayLike,
    statistic: Callable[[Floats], Floats],
    *,
    seed: Seed = 0,
    resamples: int = 2000,
    level: float = 0.95,
    counts: ArrayLike | None = None,
) -> Interval:
    """Any statistic of summed quantities with its percentile interval from resampled cells.

    Args:
        sums: `[cells, quantity]` or `[cells, quantity, head]`.
        statistic: turns totals `[resample, quantity(, head)]` into `[resample(, head)]`.
        seed: of the resampling.
        resamples: bootstrap draws.
        level: of the two-sided interval and of the one-sided bound.
        counts: `[cells]` or `[cells, head]`, whether a cell holds anything (for a head); all if None.

    >>> found = cell_interval([[1.0, 2.0], [3.0, 2.0]], lambda total: total[:, 0] / total[:, 1])
    >>> float(found.value), int(found.n)
    (1.0, 2)
    """
    numbers = np.asarray(sums, dtype=np.float64)
    flat = numbers.ndim == 2
    table = numbers[:, :, None] if flat else numbers
    cells, _, heads = table.shape
    present = np.ones((cells, heads), bool) if counts is None else np.asarray(counts, dtype=bool)
    present = np.broadcast_to(present if present.ndim == 2 else present[:, None], (cells, heads))
    n = present.sum(axis=0)
    # The statistic sees a trailing head axis even where the caller has none: take it away and put it back.
    measured: Callable[[Floats], Floats] = (lambda t: statistic(t[:, :, 0])[:, None]) if flat else statistic
    value = np.full(heads, np.nan)
    ends = np.full((3, heads), np.nan)
    if cells:
        value = np.where(n > 0, measured(table.sum(axis=0)[None])[0], np.nan)
    if cells > 1:
        drawn = _resampled(table, measured, np.random.default_rng(seed), resamples)
        tail = (1 - level) / 2
        ends = np.where(n > 1, _quantiles(drawn, [tail, 1 - tail, level]), np.nan)
    parts = [value, *ends, n]
    value, low, high, upper, n = (part[0] for part in parts) if flat else parts
    return Interval(value, low, high, upper, n)


def _resampled(
    table: Floats, statistic: Callable[[Floats], Floats], generator: np.random.Generator, resamples: int
) -> Floats:
    """Statistic of every resample `[resample, head]`; the same cells are drawn for every head."""
    cells, quantities, heads = table.shape
    weights = generator.multinomial(cells, np.full(cells, 1 / cells), size=resamples).astype(np.float64)
    step = max(1, _BUDGET // max(1, quantities * heads))
    chunks = [
        statistic(np.tensordot(weights[start : start + step], table, axes=1)) for start in range(0, resamples, step)
    ]
    return np.concatenate(chunks)


def _quantiles(drawn: Floats, levels: Sequence[float]) -> Floats:
    missing = np.isnan(drawn)
    if not missing.any():
        # The same at half the time: beside missing numbers each head is looked at by itself.
        return np.asarray(np.quantile(drawn, levels, axis=0))
    empty = missing.all(axis=0)
    filled = np.where(empty, 0.0, drawn)
    return np.where(empty, np.nan, np.nanquantile(filled, levels, axis=0))
