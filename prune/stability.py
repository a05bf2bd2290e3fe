"""Stability: would other texts of the same kind have ranked the heads the same way?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headwise.prune.importance.resampled import Resampled

#: How often the texts are drawn again.
RESAMPLES = 200


def stability(
    kind: str, values: Mapping[str, np.ndarray], resampled: Resampled | None, *, seed: int, resamples: int = RESAMPLES
) -> dict[str, Any]:
    """How alike the ranks of heads are on resampled texts: Kendall's tau with the ranks that decided.

    Texts are drawn with replacement, in up to 64 parts by content, and scored anew from sums that the score's own
    pass kept: no text is read again. 1: always the same order; 0: no more alike than two random orders (Kendall,
    1938; tau-b, which allows for ties).

    Args:
        kind: name of the score.
        values: score of every head by site; NaN for heads that are gone.
        resampled: how the score is had on other texts; None if it does not say.
        seed: of the draws.
        resamples: how often.

    Returns:
        `schema`, `score`, `tau` (median; null where it is not known, and `how` says why), `low` and `high` (the
        range that holds 95 % of the draws), `resamples`, and `how`, what was drawn again, in words.

    >>> always = Resampled("a made-up score", np.ones(8), lambda weights: {"0": np.arange(3.0)})
    >>> stability("made-up", {"0": np.arange(3.0)}, always, seed=0)["tau"]
    1.0
    """
    told: dict[str, Any] = {"schema": 1, "score": kind, "tau": None, "low": None, "high": None, "resamples": 0}
    if resampled is None:
        return {**told, "how": "this score does not say how it depends on single texts"}
    if resampled.without_texts:
        return {**told, "tau": 1.0, "low": 1.0, "high": 1.0, "how": resampled.how}
    if resampled.anew is None or resampled.texts is None:
        return {**told, "how": resampled.how}
    there = np.flatnonzero(resampled.texts > 0)
    if len(there) < 2:
        return {**told, "how": "too few texts to draw from"}
    full = _flat(resampled.instead or values, values)
    generator, found = np.random.default_rng(seed), []
    for _ in range(resamples):
        weights = np.zeros(len(resampled.texts))
        weights[there] = generator.multinomial(len(there), np.full(len(there), 1 / len(there)))
        found.append(_tau(full, _flat(resampled.anew(weights), values)))
    known = np.array([tau for tau in found if np.isfinite(tau)])
    if not len(known):
        return {**told, "how": "all heads score the same"}
    low, middle, high = np.quantile(known, [0.025, 0.5, 0.975])
    return {
        **told, "tau": float(middle), "low": float(low), "high": float(high), "resamples": len(known),
        "how": resampled.how,
    }  # fmt: skip


def _flat(values: Mapping[str, np.ndarray], there: Mapping[str, np.ndarray]) -> np.ndarray:
    """The heads that exist, in one row."""
    return np.concatenate([np.asarray(values[name])[np.isfinite(there[name])] for name in there])


def _tau(one: np.ndarray, other: np.ndarray) -> float:
    from scipy.stats import kendalltau

    return float(kendalltau(one, np.nan_to_num(other)).statistic)
