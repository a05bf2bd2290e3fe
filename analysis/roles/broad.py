"""Broad heads: attention spread over most tokens, as a bag of words, and yet not the same for all."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from headwise.analysis.roles.assignment import Measured

#: Of the entropy of an indifferent head, the least that is broad; Clark et al. (2019) drew the line at 3.8 nats.
WIDE = 0.8
#: Nats within which two entropies in float32 are equal.
_ROUNDING = 1e-6


def broad(
    entropy: tuple[Float[np.ndarray, "cell head"], Float[np.ndarray, "cell head"]],
    below_uniform: tuple[Float[np.ndarray, "cell head"], Float[np.ndarray, "cell head"]],
) -> Measured:
    """Sums of the role `broad` from the statistics `normalised_entropy` and `below_uniform`, by cell.

    Score: the distance from the uniform line as attention mass that would have to move, at most √(KL/2) by
    Pinsker's inequality, KL = log(number of allowed keys) − entropy. Chance: 0, the uniform line itself, where a
    head that does nothing lies. A focused head, whose entropy is below 0.8 of that line's (the statistic
    `normalised_entropy`), scores 0. So a uniform head is not broad, and neither is a focused one.

    Args:
        entropy: summed normalised entropy and its rows.
        below_uniform: summed KL from the uniform and its rows.

    >>> rows = np.full((4, 2), 10.0)
    >>> found = broad((rows * [1.0, 0.9], rows), (rows * [0.0, 0.3], rows))
    >>> (found.excess / found.rows)[0].round(2).tolist()
    [0.0, 0.39]
    """
    sums, rows = entropy
    total = rows.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        wide = np.where(total > 0, sums.sum(0) / total, np.nan)
        per_row = np.where(rows > 0, below_uniform[0] / np.where(rows > 0, rows, 1.0), 0.0)
    # What float32 leaves of an indifferent head's distance must not grow under the root.
    excess = np.sqrt(np.where(per_row > _ROUNDING, per_row, 0.0) / 2) * rows
    excess *= np.nan_to_num(wide, nan=0.0) >= WIDE
    return Measured(excess, np.zeros_like(rows), excess, rows)
