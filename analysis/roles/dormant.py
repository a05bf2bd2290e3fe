"""Dormant heads: they hand on next to nothing, wherever they look."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float

from headwise.analysis.capture.seen import positions_of
from headwise.analysis.roles.assignment import Measured
from headwise.analysis.sites import Site


def dormant(
    norm: tuple[Float[np.ndarray, "cell head"], Float[np.ndarray, "cell head"]],
    quiet: Bool[np.ndarray, " head"],
    sites: Mapping[str, Site],
) -> Measured:
    """Sums of the role `dormant` from the statistic `context_norm`, by cell.

    Score: what the head's contexts lack to the mean length of its site's, as a share of it: 1 for a head that hands on
    nothing. Chance: 0, a head like any other. A head that is not under 5 % of the mean of its site (the statistic
    `dormant`) scores 0.

    Args:
        norm: summed length of contexts and its rows.
        quiet: which heads are under the line, over all texts.
        sites: the sites.

    >>> one = {"0": Site("0", "a", "a.o", heads=2, kv_heads=2, head_dim=1, kept=(0, 1))}
    >>> rows = np.full((4, 2), 10.0)
    >>> found = dormant((rows * [0.02, 1.98], rows), np.array([True, False]), one)
    >>> (found.excess / found.rows)[0].round(2).tolist()
    [0.98, -0.0]
    """
    sums, rows = norm
    there = rows > 0
    means = np.where(there, sums / np.where(there, rows, 1.0), 0.0)
    lacks = np.zeros_like(means)
    for at in positions_of(sites).values():
        if len(at):
            whole = means[:, at].mean(1, keepdims=True)
            lacks[:, at] = np.where(whole > 0, 1 - means[:, at] / np.where(whole > 0, whole, 1.0), 0.0)
    excess = lacks * rows * quiet
    return Measured(excess, np.zeros_like(rows), excess, rows)
