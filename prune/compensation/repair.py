"""Repair: the output projection that makes up best for contexts that are no longer there, and its error."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_solve

from headwise.prune.importance.repair_cost import factored


def refitted(weight: np.ndarray, second: np.ndarray, gone: np.ndarray, ridge: float = 1e-2) -> np.ndarray:
    """The projection whose kept columns stand in for the removed ones with the least squared error.

    W'_K = W_K + W_S C_SK (C_KK + delta I)^-1: of all linear maps of the kept contexts the closest to the dense
    output, drawn towards the weights as they are. Pass a centred second moment to get the best fit with a bias,
    and move the bias by (W - W') mean.

    Args:
        weight: [out, column].
        second: second moment of the contexts, [column, column].
        gone: indices of the removed columns; they keep their weights, which nothing reads any more.
        ridge: delta in units of the mean diagonal.

    Returns:
        New weight [out, column].

    >>> second = np.ones((2, 2))  # two columns that always say the same
    >>> refitted(np.array([[1.0, 2.0]]), second, np.array([1]), ridge=1e-9).round(6)
    array([[3., 2.]])
    """
    kept = np.setdiff1d(np.arange(len(second)), gone)
    new = weight.copy()
    if len(kept) and len(gone):
        factor = factored(second, ridge, kept)
        new[:, kept] += weight[:, gone] @ cho_solve(factor, second[np.ix_(kept, gone)]).T
    return new


def relative_error(
    weight: np.ndarray,
    new: np.ndarray,
    gone: np.ndarray,
    moved: np.ndarray,
    second: np.ndarray,
    mean: np.ndarray,
    size: float | None = None,
) -> float:
    """Root mean square of what the block's output is off by, relative to the output without bias.

    Args:
        weight: dense projection, [out, column].
        new: the projection that replaces it; its removed columns do not count.
        gone: indices of the removed columns.
        moved: what was added to the bias, [out].
        second: second moment of the contexts (not centred), [column, column].
        mean: mean of the contexts, [column].
        size: `squared(weight, second)`, if it is known.

    >>> second = np.diag([4.0, 1.0])
    >>> weight = np.ones((1, 2))
    >>> round(relative_error(weight, weight, np.array([1]), np.zeros(1), second, np.zeros(2)), 4)
    0.4472
    """
    lost = weight - new
    lost[:, gone] = weight[:, gone]
    square = np.sum((lost @ second) * lost) - 2 * moved @ lost @ mean + moved @ moved
    size = squared(weight, second) if size is None else size
    return float(np.sqrt(max(square, 0.0) / size)) if size > 0 else 0.0


def unrepaired(weight: np.ndarray, gone: np.ndarray, second: np.ndarray, size: float) -> float:
    """The relative error where nothing makes up for the removed columns: a product of these alone.

    >>> unrepaired(np.ones((1, 2)), np.array([1]), np.diag([4.0, 1.0]), 4.0)
    0.5
    """
    return float(np.sqrt(squared(weight[:, gone], second[np.ix_(gone, gone)]) / size)) if size > 0 else 0.0


def squared(weight: np.ndarray, second: np.ndarray) -> float:
    """Mean square of what a projection without its bias puts out.

    >>> squared(np.ones((1, 2)), np.diag([4.0, 1.0]))
    5.0
    """
    return float(np.sum((weight @ second) * weight))
