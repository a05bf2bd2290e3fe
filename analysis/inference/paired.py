"""Two systems judged on the same examples: differences, their bounds, and exact tests.

Examples with a NaN on either side are left out and counted; with no example every answer is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

from headwise.analysis.errors import BadInput
from headwise.analysis.inference.intervals import Floats, Interval, Seed, bootstrap_interval

#: Swapped numbers held in memory at a time.
_BUDGET = 4_000_000


def paired_bootstrap(
    a: ArrayLike,
    b: ArrayLike,
    metric: Callable[[NDArray[Any]], float] | None = None,
    *,
    seed: Seed = 0,
    resamples: int = 2000,
    level: float = 0.95,
) -> Interval:
    """metric(a) − metric(b) with its percentile interval, examples resampled in pairs.

    `upper` is the largest difference that the data cannot exclude (one-sided). For right/wrong scores, whose
    bootstrap collapses when few examples differ, it is Tango's score bound instead.

    Args:
        a: one number (or row of numbers) per example, of the first system.
        b: the same examples of the second system.
        metric: of an array of examples, higher or lower is better alike; the mean if None.
        seed: of the resampling.
        resamples: bootstrap draws.
        level: of the two-sided interval and of the one-sided bound.

    Raises:
        BadInput: `a` and `b` differ in shape.

    >>> found = paired_bootstrap([1, 1, 1, 0], [1, 1, 0, 0], seed=0)
    >>> float(found.value), bool(found.upper > found.value)
    (0.25, True)
    """
    first, second, excluded = _pairs(a, b)
    n = len(first)
    if metric is None and first.ndim == 1:
        difference = first - second
        found = bootstrap_interval(difference, seed=seed, resamples=resamples, level=level)
        upper = found.upper
        if n and np.isin(first, (0, 1)).all() and np.isin(second, (0, 1)).all():
            lost, gained = int((difference > 0).sum()), int((difference < 0).sum())
            upper = paired_proportion_bound(lost, gained, n, level=level)
        return Interval(found.value, found.low, found.high, upper, n, excluded)
    measure = metric if metric is not None else np.mean
    nan = float("nan")
    if n == 0:
        return Interval(nan, nan, nan, nan, 0, excluded)
    value = float(measure(first)) - float(measure(second))
    if n == 1:
        return Interval(value, nan, nan, nan, 1, excluded)
    generator = np.random.default_rng(seed)
    drawn = np.empty(resamples)
    for i in range(resamples):
        rows = generator.integers(0, n, size=n)
        drawn[i] = float(measure(first[rows])) - float(measure(second[rows]))
    tail = (1 - level) / 2
    low, high, upper = np.nanquantile(drawn, [tail, 1 - tail, level])
    return Interval(value, float(low), float(high), float(upper), n, excluded)


def _pairs(a: ArrayLike, b: ArrayLike) -> tuple[Floats, Floats, int]:
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape:
        raise BadInput(f"paired values: got shapes {first.shape} and {second.shape}, expected the same")
    missing = np.asarray(np.isnan(first) | np.isnan(second))
    bad = missing.any(axis=tuple(range(1, missing.ndim)))
    return first[~bad], second[~bad], int(bad.sum())


def paired_proportion_bound(lost: int, gained: int, n: int, *, level: float = 0.95) -> float:
    """One-sided upper bound of (lost − gained) / n, the score bound of Tango (1998).

    Unlike the bootstrap it stays honest when nothing or little differs: with no discordant pair among 100
    it is 2.6 %, not 0.

    Args:
        lost: examples that the first system has right and the second wrong.
        gained: examples that only the second has right.
        n: all examples; NaN is returned for 0.
        level: confidence.

    >>> round(paired_proportion_bound(0, 0, 100), 3)
    0.026
    """
    if n == 0:
        return float("nan")
    if lost == n:
        return 1.0
    z = float(stats.norm.ppf(level))

    def excess(delta: float) -> float:
        # Discordant probability under the constraint p_lost − p_gained = delta, by maximum likelihood.
        half = -lost - gained + (2 * n - lost + gained) * delta
        gain = (np.sqrt(max(half**2 + 8 * n * gained * delta * (1 - delta), 0.0)) - half) / (4 * n)
        spread = n * (2 * gain + delta * (1 - delta))
        return float(n * delta - (lost - gained) - z * np.sqrt(max(spread, 0.0)))

    observed = (lost - gained) / n
    return float(optimize.brentq(excess, max(observed, -1 + 1e-12) + 1e-12, 1 - 1e-12))


@dataclass(frozen=True)
class Flips:
    """How many examples changed from right to wrong and back, with McNemar's exact p.

    Attributes:
        lost: right before, wrong after.
        gained: wrong before, right after.
        p: two-sided exact p that both ways are equally likely; 1 where nothing changed.
    """

    lost: int
    gained: int
    p: float


def mcnemar(a_correct: ArrayLike, b_correct: ArrayLike) -> Flips:
    """Changes from `a` to `b` and their exact McNemar p (1947), a binomial test on what changed.

    Raises:
        BadInput: `a_correct` and `b_correct` differ in shape.

    >>> mcnemar([True] * 6, [False] * 5 + [True])
    Flips(lost=5, gained=0, p=0.0625)
    """
    a, b, _ = _pairs(a_correct, b_correct)
    lost, gained = int(np.sum((a > 0) & (b == 0))), int(np.sum((a == 0) & (b > 0)))
    p = float(stats.binomtest(lost, lost + gained).pvalue) if lost + gained else 1.0
    return Flips(lost, gained, p)


def permutation_p(
    a: ArrayLike,
    b: ArrayLike,
    *,
    seed: Seed = 0,
    resamples: int = 10_000,
    alternative: str = "two-sided",
) -> float:
    """Return the p that the paired values `a` and `b` differ in mean: labels swapped within pairs.

    Exact where there are at most `resamples` patterns, else (1 + extreme draws) / (1 + draws).
    NaN with no pair.

    Args:
        a: one number per example.
        b: the same examples.
        seed: of the draws.
        resamples: draws.
        alternative: `two-sided`, or `greater`: a is greater than b.

    Raises:
        BadInput: `a` and `b` differ in shape.

    >>> permutation_p([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])
    0.25
    """
    first, second, _ = _pairs(a, b)
    if len(first) == 0:
        return float("nan")
    if not np.any(first - second):
        return 1.0
    if len(first) == 1:
        return 0.5 if alternative == "greater" and first[0] > second[0] else 1.0
    found = stats.permutation_test(
        (first - second,),
        lambda x, axis=-1: np.mean(x, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        batch=max(1, _BUDGET // len(first)),
        alternative=alternative,
        rng=np.random.default_rng(seed),
    )
    return float(found.pvalue)
