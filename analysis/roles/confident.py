"""Confident heads: most of a row's attention on one token, whichever that is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float

from headwise.analysis.capture.seen import Reducer, Seen, positions_of
from headwise.analysis.corpus.batching import Batch
from headwise.analysis.inference.cells import CELLS, add_by_cell, cells_of
from headwise.analysis.roles.assignment import Measured
from headwise.analysis.sites import Site

#: The least mean largest weight that is confident: more on one token than on all others together.
FIRM = 0.5


class EvenWeight(Reducer):
    """The largest weight of an indifferent head, 1 over the number of allowed keys, summed over rows by cell of texts.

    Args:
        sites: the sites.
    """

    needs: frozenset[str] = frozenset()
    totals = ("sums",)

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self._at = positions_of(sites)
        self.sums = torch.zeros(CELLS, sum(site.heads for site in sites.values()), dtype=torch.float64)

    def update(self, batch: Batch, seen: Mapping[str, Seen]) -> None:
        """Take in one batch, or one tile of it."""
        found = torch.zeros(len(batch.texts), self.sums.shape[1], dtype=torch.float64)
        for name, one in seen.items():
            even = (one.queries / one.choices.clamp(min=1)).sum(1)
            found[:, torch.from_numpy(self._at[name])] = even.cpu().double()[:, None]
        add_by_cell(self.sums, cells_of(batch.texts), found)

    def result(self) -> dict[str, np.ndarray]:
        """Nothing: it is the chance level of a role."""
        return {}


def confident(
    weight: tuple[Float[np.ndarray, "cell head"], Float[np.ndarray, "cell head"]], even: Float[np.ndarray, "cell head"]
) -> Measured:
    """Sums of the role `confident`, by cell.

    Score: the largest weight of a row, separators left out as targets (the statistic `confidence`: Voita et al. 2019).
    Chance: that of an indifferent head, 1 over the number of allowed keys. Only heads whose mean is above one half
    can play it.

    Args:
        weight: summed largest weight and its rows.
        even: the same of an indifferent head, summed over the same rows.

    >>> rows = np.full((4, 2), 10.0)
    >>> confident((rows * [0.9, 0.3], rows), rows * 0.1).eligible.tolist()
    [True, False]
    """
    sums, rows = weight
    total = rows.sum(0)
    mean = sums.sum(0) / np.where(total > 0, total, np.nan)
    return Measured(sums, even, sums - even, rows, eligible=np.nan_to_num(mean) > FIRM)
