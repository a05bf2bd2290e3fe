"""The metrics of labelled tasks: scikit-learn's, over rows of (label, prediction) numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from sklearn import metrics as sk

MetricName = Literal["accuracy", "balanced-accuracy", "macro-f1", "matthews"]

#: All of them: higher is better. `accuracy` is the mean of right and wrong, so it needs no function of rows.
METRICS: dict[str, Callable[[np.ndarray], float] | None] = {
    "accuracy": None,
    # Written as recall: scikit-learn's balanced_accuracy_score warns when a resample misses a class.
    "balanced-accuracy": lambda rows: float(
        sk.recall_score(rows[:, 0], rows[:, 1], labels=np.unique(rows[:, 0]), average="macro", zero_division=0)
    ),
    "macro-f1": lambda rows: float(sk.f1_score(rows[:, 0], rows[:, 1], average="macro", zero_division=0)),
    "matthews": lambda rows: float(sk.matthews_corrcoef(rows[:, 0], rows[:, 1])),
}


def value_of(metric: str, labels: np.ndarray, predictions: np.ndarray) -> float:
    """The metric of class numbers.

    >>> value_of("accuracy", np.array([0, 1]), np.array([0, 0]))
    0.5
    """
    measure = METRICS[metric]
    if measure is None:
        return float(sk.accuracy_score(labels, predictions))
    return measure(np.stack([labels, predictions], axis=1))
