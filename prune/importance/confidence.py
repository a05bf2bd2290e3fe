"""Confidence: how sure a head is of where it looks."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.known import drawn_again, from_evidence
from headwise.prune.importance.passes import Passes
from headwise.prune.importance.resampled import Resampled
from headwise.prune.importance.scores import Scores, spread


class Confidence(BaseModel):
    """Mean over tokens of a head's largest attention weight (Voita et al., 2019, "Analyzing multi-head ...").

    Read from the evidence; heads without a number (no token had more than one key) score 0.

    >>> Confidence().kind
    'confidence'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["confidence"] = "confidence"

    def foretell(self, passes: Passes) -> None:
        """Count the passes of `score` beyond the analysis: none."""

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head, from 0 to 1.

        Raises:
            BadInput: the evidence lacks it, or is of another model.
        """
        values = from_evidence(calibration, "statistics/confidence", self.kind)
        for name, site in calibration.sites.items():
            kept = list(site.kept)
            values[name][kept] = np.nan_to_num(values[name][kept])
        return Scores(self.kind, values, resampled=_resampled(calibration))


def _resampled(calibration: Calibration) -> Resampled:
    """Means over texts drawn again, from the sums that the evidence keeps by part of the texts."""
    found = drawn_again(calibration.evidence, "confidence")
    if found is None:
        return Resampled("the evidence keeps no sums by part of the texts; analyse again")
    texts, means = found
    place = {(name, int(head)): index for index, (name, head) in enumerate(calibration.evidence.heads)}

    def anew(weights: np.ndarray) -> dict[str, np.ndarray]:
        each = means(weights)
        return {
            name: spread(site, np.array([each[place[name, head]] for head in site.kept]))
            for name, site in calibration.sites.items()
        }

    return Resampled("texts drawn again", texts, anew)
