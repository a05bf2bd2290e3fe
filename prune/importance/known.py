"""Known: numbers per head that the evidence holds already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from headwise.analysis.errors import BadInput
from headwise.prune.importance.calibration import Calibration


def from_evidence(calibration: Calibration, array: str, score: str) -> dict[str, np.ndarray]:
    """An array of the evidence by site, float64 [head]; NaN where a head is gone.

    Raises:
        BadInput: there is no such array, or it is of another model.
    """
    evidence: Any = calibration.evidence
    found = getattr(evidence, "arrays", {}).get(array)
    if found is None:
        raise BadInput(f"score {score}: the evidence has no {array}; analyse with it, or choose another score")
    place = {(name, int(head)): index for index, (name, head) in enumerate(evidence.heads)}
    values = {}
    for name, site in calibration.sites.items():
        missing = [head for head in site.kept if (name, head) not in place]
        if missing:
            raise BadInput(f"score {score}: the evidence is of another model: it has no head {name}.{missing[0]}")
        values[name] = np.full(site.heads, np.nan)
        for head in site.kept:
            values[name][head] = float(found[place[name, head]])
    return values


def drawn_again(evidence: Any, statistic: str) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]] | None:
    """How a statistic of the evidence depends on its texts; None if it keeps no sums by part of them.

    Returns:
        how many rows each part holds, [part], and from how often each part is drawn to the mean of every head of the
        evidence, 0 where no row is, [head].
    """
    table = getattr(evidence, "arrays", {}).get(f"parts/{statistic}")
    if table is None:
        return None
    sums = np.asarray(table, dtype=np.float64)

    def means(weights: np.ndarray) -> np.ndarray:
        drawn = np.einsum("hpk,p->hk", sums, weights)
        return np.asarray(np.divide(drawn[:, 0], drawn[:, 1], out=np.zeros(len(drawn)), where=drawn[:, 1] > 0))

    return sums[..., 1].max(0), means
