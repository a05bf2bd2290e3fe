"""Random: the baseline that every score has to beat."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.passes import Passes
from headwise.prune.importance.resampled import untouched
from headwise.prune.importance.scores import Scores, spread


class Random(BaseModel):
    """Uniform random numbers from the run's seed.

    >>> from headwise.analysis.sites import Site
    >>> site = Site("0", "attn", "attn.o", 2, 2, 8, kept=(0, 1))
    >>> scores = [Random().score(Calibration(None, {"0": site}, None, seed=seed))["0"] for seed in (1, 1, 2)]
    >>> bool((scores[0] == scores[1]).all()), bool((scores[0] == scores[2]).all())
    (True, False)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["random"] = "random"

    def foretell(self, passes: Passes) -> None:
        """Count the passes of `score`: none."""

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head in [0, 1), the same for a head whether or not others are gone."""
        generator = np.random.default_rng(calibration.seed)
        values = {}
        for name, site in calibration.sites.items():
            drawn = generator.random(site.heads)
            values[name] = spread(site, drawn[list(site.kept)])
        drawn_once = untouched(values, "drawn by the seed: no text is looked at, and another seed ranks otherwise")
        return Scores(self.kind, values, resampled=drawn_once)
