"""Statistical inference: the one door to intervals, paired comparisons, tests over heads and reliability."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from headwise.analysis.inference.intervals import (
    Floats,
    Interval,
    Seed,
    bootstrap_interval,
    cell_interval,
    ratio_interval,
    ratio_of_sums,
)
from headwise.analysis.inference.paired import (
    Flips,
    mcnemar,
    paired_bootstrap,
    paired_proportion_bound,
    permutation_p,
)

__all__ = [
    "Flips",
    "Interval",
    "benjamini_hochberg",
    "bootstrap_interval",
    "cell_interval",
    "mcnemar",
    "paired_bootstrap",
    "paired_proportion_bound",
    "permutation_p",
    "ratio_interval",
    "ratio_of_sums",
    "sign_flip_p",
    "split_half_reliability",
]

#: Of this many cells, the largest, every sign pattern is tried; the normal tail stands for the others.
_EXACT_SIGNS = 12
#: Heads whose patterns are held in memory together.
_HEADS_AT_ONCE = 256


def sign_flip_p(sums: ArrayLike) -> Floats:
    """One-sided p per head that differences summed per cell are positive: sign-flip test.

    Null: the sign of every cell's difference is a fair coin. All sign patterns of the 12 largest differences are
    tried; the sum of the others is taken as normal, with their variance and a continuity correction by the
    smallest of them. So p is exact for up to 12 cells that are not zero, close for more even if few cells
    dominate or all differences are equal, and reaches the small p-values that hundreds of heads need and
    permutations cannot. A sum of coins has thinner tails than a normal, so the far tail errs upwards.

    Args:
        sums: `[cells]` or `[cells, head]`, one difference a cell; NaN counts as no observation.

    Returns:
        `[head]` or a number; 1 where all differences are zero, NaN where there are none.

    >>> float(sign_flip_p([1.0, 1.0, 1.0]))
    0.125
    """
    given = np.asarray(sums, dtype=np.float64)
    table = given if given.ndim == 2 else given[:, None]
    missing = np.isnan(table).all(axis=0)
    table = np.where(np.isnan(table), 0.0, table)
    starts = range(0, table.shape[1], _HEADS_AT_ONCE)
    parts = [_sign_flip_tail(table[:, start : start + _HEADS_AT_ONCE]) for start in starts]
    p = np.concatenate(parts) if parts else np.zeros(0)
    return np.asarray(np.where(missing, np.nan, p).reshape(given.shape[1:]))


def _sign_flip_tail(table: Floats) -> Floats:
    """P(Σ±d ≥ Σd) of every column."""
    sizes = -np.sort(-np.abs(table), axis=0)
    top, rest = sizes[:_EXACT_SIGNS], sizes[_EXACT_SIGNS:]
    n = len(top)
    signs = 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    # Patterns that tie with the data up to rounding belong to the tail.
    needed = table.sum(axis=0) - 1e-12 * sizes.sum(axis=0) - signs @ top
    spread = np.sqrt(np.square(rest).sum(axis=0))
    step = np.where(rest > 0, rest, np.inf).min(axis=0, initial=np.inf)
    there = spread > 0
    z = (needed - np.where(there, step, 0.0)) / np.where(there, spread, 1.0)
    return np.asarray(np.where(there, special.ndtr(-z), needed <= 0).mean(axis=0))


def benjamini_hochberg(p: ArrayLike) -> Floats:
    """Adjusted p-values (q) that bound the false discovery rate (Benjamini and Hochberg 1995).

    Args:
        p: p-values of any shape; NaN ("not applicable") stays NaN and is not counted as a test.

    >>> benjamini_hochberg([0.01, 0.04, float("nan")]).tolist()
    [0.02, 0.04, nan]
    """
    given = np.asarray(p, dtype=np.float64)
    adjusted = np.full(given.shape, np.nan)
    tested = ~np.isnan(given)
    if tested.any():
        adjusted[tested] = stats.false_discovery_control(given[tested], method="bh")
    return adjusted


def split_half_reliability(
    numerators: ArrayLike, denominators: ArrayLike, *, seed: Seed = 0, splits: int = 100
) -> float:
    """How well scores from one half of the cells predict those of the other, over heads.

    Mean Pearson correlation over random halves, stepped up to the full length: 2r / (1 + r) (Spearman 1910,
    Brown 1910), unless it is negative, where there is nothing to step up. So it lies between −1 and 1. NaN with under
    four cells, or fewer than two heads that differ.

    Args:
        numerators: `[cells, head]` sums.
        denominators: `[cells, head]` or `[cells]`.
        seed: of the halves.
        splits: how many random halves.

    >>> round(split_half_reliability([[0.0, 1.0]] * 4, [1.0] * 4), 6)
    1.0
    """
    above, below = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    below = np.broadcast_to(below if below.ndim == 2 else below[:, None], above.shape)
    filled = np.flatnonzero((below != 0).any(axis=1))
    if len(filled) < 4:
        return float("nan")
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(splits):
        order = generator.permutation(filled)
        halves = [order[: len(order) // 2], order[len(order) // 2 :]]
        scores = np.stack([ratio_of_sums(np.stack([above[h].sum(0), below[h].sum(0)])[None])[0] for h in halves])
        scores = scores[:, ~np.isnan(scores).any(axis=0)]
        if scores.shape[1] > 1 and (scores.std(axis=1) > 1e-12).all():
            found.append(np.corrcoef(scores)[0, 1])
    if not found:
        return float("nan")
    r = float(np.mean(found))
    return 2 * r / (1 + r) if r > 0 else r
