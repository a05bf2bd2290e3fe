"""Ranks: how well predicted numbers order examples as the right numbers do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from scipy.stats import rankdata

from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.errors import BadInput
from headwise.prune.tasks.outcome import Outcome

Correlation = Literal["spearman", "pearson"]


def numbers_of(corpus: Corpus) -> np.ndarray:
    """The corpus's labels as numbers.

    Raises:
        BadInput: a text has no label, or one that is no number.
    """
    labels = [text.label for text in corpus.texts]
    wrong = next((x for x in labels if not isinstance(x, int | float)), None) if labels else None
    if not labels or any(not isinstance(x, int | float) for x in labels):
        raise BadInput(f"{corpus.source}: every text needs a number as its label, got {wrong!r}; name the label column")
    return np.asarray(labels, dtype=np.float64)


def correlation(metric: Correlation) -> Callable[[np.ndarray], float]:
    """The correlation of rows (right, predicted); 0 where either side is constant.

    >>> correlation("spearman")(np.array([[1.0, 2.0], [2.0, 4.0], [3.0, 8.0]]))
    1.0
    """
    ranks = metric == "spearman"

    def measure(rows: np.ndarray) -> float:
        if len(rows) < 2 or np.ptp(rows[:, 0]) == 0 or np.ptp(rows[:, 1]) == 0:
            return 0.0
        # Not scipy's own, which also tests it: intervals ask thousands of times.
        return float(np.corrcoef(rankdata(rows, axis=0) if ranks else rows, rowvar=False)[0, 1])

    return measure


def ranked_outcome(
    kind: str, metric: Correlation, right: np.ndarray, said: np.ndarray, texts: Sequence[Any], skipped: dict[str, int]
) -> Outcome:
    """The outcome of predicted numbers.

    An example's own score is 1 − 6 d² / (n² − 1), d being the difference of its ranks: without ties their
    mean is Spearman's correlation.
    """
    rows = np.stack([right, said], axis=1)
    measure = correlation(metric)
    apart = rankdata(right) - rankdata(said)
    return Outcome(
        kind=kind,
        metric=metric,
        value=measure(rows),
        per_example=1 - 6 * apart**2 / max(1, len(right) ** 2 - 1),
        higher_is_better=True,
        texts=texts,
        predictions=[float(x) for x in said],
        rows=rows,
        measure=measure,
        skipped=skipped,
    )
