"""Repair cost: the error that stays when heads leave an output projection and it is repaired."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg import cho_factor, cho_solve


def ridged(second: np.ndarray, ridge: float) -> np.ndarray:
    """The second moment with `ridge` times its mean diagonal added to the diagonal; at least 1 if that is not positive.

    >>> ridged(np.diag([1.0, 3.0]), 0.5)
    array([[2., 0.],
           [0., 4.]])
    """
    scale = float(np.trace(second)) / len(second)
    # Below zero by rounding the diagonal is no unit; the ridge itself still counts, so that a larger one adds more.
    return second + np.eye(len(second)) * (ridge * scale if scale > 0 else max(1.0, ridge))


def factored(
    second: np.ndarray, ridge: float, at: np.ndarray | None = None, *, lower: bool = False
) -> tuple[np.ndarray, bool]:
    """Cholesky factor of the second moment with a ridge, as `cho_solve` takes it.

    The ridge is as much larger as it takes: moments are sums of float32 products, and about a mean that is far larger
    than what differs from it (heads that look at one token everywhere) they are not positive in every direction.

    Args:
        second: the moment, [column, column].
        ridge: see `ridged`.
        at: the columns that are meant; the ridge's unit is the mean of all.
        lower: which triangle holds it.

    >>> factor, _ = factored(np.diag([1.0, -0.1]), 0.01)
    >>> bool(np.isfinite(factor).all())
    True
    """
    while True:
        shape = ridged(second, ridge)
        try:
            factor, where = cho_factor(shape if at is None else shape[np.ix_(at, at)], lower=lower)
        except np.linalg.LinAlgError:
            ridge *= 10.0
        else:
            return factor, where


class RepairCost:
    """Costs of removing heads from one projection, after repair, kept exact while heads leave.

    With H the (ridged) second moment of the contexts, W the projection, G the second moment of the loss
    gradient at its output, S the removed columns and K the rest, the least that a removal can cost is

        tr( G W_S (H_SS - H_SK H_KK^-1 H_KS) W_S^T ).

    Optimal brain surgery (Hassibi & Stork, 1993; for whole heads Kurtic et al., 2023, "ZipLM") gives it step
    by step: with P = H^-1 a removal costs tr(P_SS^-1 Q_SS), Q = W^T G W, and then both are downdated. The sum
    over steps is the cost of all removed heads together: the second of two twins costs what both are worth.

    Args:
        second: second moment of the contexts, [column, column].
        worth: Q, [column, column].
        columns: head -> its columns.
        ridge: see `ridged`.
    """

    def __init__(
        self, second: np.ndarray, worth: np.ndarray, columns: dict[int, np.ndarray], ridge: float = 1e-2
    ) -> None:
        inverse = cho_solve(factored(second, ridge), np.eye(len(second)))
        self._inverse = (inverse + inverse.T) / 2
        self._worth = (worth + worth.T) / 2
        self._columns = columns

    @property
    def bytes(self) -> int:
        """What the matrices take.

        >>> RepairCost(np.eye(2), np.eye(2), {}).bytes
        64
        """
        return int(self._inverse.nbytes + self._worth.nbytes)

    def costs(self, units: Sequence[tuple[int, ...]]) -> np.ndarray:
        """What each unit adds to the error after repair, shape [unit].

        >>> columns = {0: np.array([0]), 1: np.array([1])}
        >>> RepairCost(np.eye(2), np.diag([2.0, 3.0]), columns, ridge=1e-12).costs([(0,), (1,)]).round(6)
        array([2., 3.])
        """
        prices = []
        for unit in units:
            s = self._at(unit)
            square = np.ix_(s, s)
            prices.append(np.trace(np.linalg.solve(self._inverse[square], self._worth[square])))
        return np.array(prices)

    def remove(self, unit: tuple[int, ...]) -> None:
        """Let the unit go and repair with what is left.

        >>> columns = {0: np.array([0]), 1: np.array([1])}
        >>> twins = RepairCost(np.ones((2, 2)), np.ones((2, 2)), columns, ridge=1e-9)
        >>> cheap = twins.costs([(1,)])
        >>> twins.remove((0,))
        >>> bool(twins.costs([(1,)]) > 1e6 * cheap)
        True
        """
        s = self._at(unit)
        square = np.ix_(s, s)
        step = np.linalg.solve(self._inverse[square], self._inverse[s])
        crossed = self._worth[:, s] @ step
        self._worth = self._worth - crossed - crossed.T + step.T @ self._worth[square] @ step
        self._inverse = self._inverse - self._inverse[:, s] @ step
        for matrix in (self._worth, self._inverse):
            # What is gone is exactly zero in theory; rounding must not grow back into later steps.
            matrix[s, :] = 0.0
            matrix[:, s] = 0.0

    def _at(self, unit: tuple[int, ...]) -> np.ndarray:
        return np.concatenate([self._columns[head] for head in unit])
