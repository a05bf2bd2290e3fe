"""The metrics of labelled tasks, over rows of (label, prediction) numbers, as scikit-learn defines them.

Counted here: intervals ask for them thousands of times, and scikit-learn looks at its arguments for most of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

MetricName = Literal["accuracy", "balanced-accuracy", "macro-f1", "matthews"]


def balanced_accuracy(rows: np.ndarray) -> float:
    """The share of right answers in each class that is a label, averaged over these classes.

    >>> balanced_accuracy(np.array([[0, 0], [0, 1], [1, 1], [1, 2]]))
    0.5
    """
    hits, labels, _ = _counts(rows)
    there = labels > 0
    return float((hits[there] / labels[there]).mean())


def macro_f1(rows: np.ndarray) -> float:
    """F1 of each class that is a label or a prediction, averaged over these classes.

    >>> macro_f1(np.array([[0, 0], [0, 1], [1, 1], [1, 0]]))
    0.5
    """
    hits, labels, said = _counts(rows)
    return float((2 * hits / (labels + said)).mean())


def matthews(rows: np.ndarray) -> float:
    """The correlation of labels and predictions (Matthews); 0 where either is the same everywhere.

    >>> matthews(np.array([[0, 0], [1, 1]])), matthews(np.array([[0, 0], [1, 0]]))
    (1.0, 0.0)
    """
    hits, labels, said = _counts(rows)
    n = labels.sum()
    spread = (n**2 - labels @ labels) * (n**2 - said @ said)
    return float((hits.sum() * n - labels @ said) / np.sqrt(spread)) if spread > 0 else 0.0


def _counts(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each class, how often it is rightly said, how often it is the label, and how often it is said."""
    classes, places = np.unique(rows, return_inverse=True)
    label, said = places.reshape(rows.shape).T
    hits, labels, answers = (
        np.bincount(found, minlength=len(classes)).astype(np.float64) for found in (label[label == said], label, said)
    )
    return hits, labels, answers


#: All of them: higher is better. `accuracy` is the mean of right and wrong, so it needs no function of rows.
METRICS: dict[str, Callable[[np.ndarray], float] | None] = {
    "accuracy": None,
    "balanced-accuracy": balanced_accuracy,
    "macro-f1": macro_f1,
    "matthews": matthews,
}


def value_of(metric: str, labels: np.ndarray, predictions: np.ndarray) -> float:
    """The metric of class numbers.

    >>> value_of("accuracy", np.array([0, 1]), np.array([0, 0]))
    0.5
    """
    measure = METRICS[metric]
    if measure is None:
        return float((labels == predictions).mean())
    return measure(np.stack([labels, predictions], axis=1))
