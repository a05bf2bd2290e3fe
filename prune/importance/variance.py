"""Variance: what of a head a bias could not replace."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.scores import Scores, spread


class Variance(BaseModel):
    """Weighted fluctuation of a head's context: the mean over its columns j of var(c_j) * |W_j|^2.

    An et al., 2024 ("Fluctuation-based adaptive structured pruning", FLAP, metric WIFV); goes with `compensate:
    {kind: bias}`, which takes over the mean. `standard` compares columns with the others of their site, as FLAP does
    before it compares sites.

    >>> Variance().normalize
    'none'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    #: Forward-backward passes over the calibration texts (one forward pass), and how many more per head.
    passes: ClassVar[float] = 1 / 3
    passes_per_head: ClassVar[float] = 0

    kind: Literal["variance"] = "variance"
    normalize: Literal["none", "standard"] = Field(
        default="none", description="`standard`: columns less their site's mean, by its standard deviation"
    )

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head, in squared units of the block's output (or standard deviations).

        Raises:
            BadInput: a site whose contexts cannot be seen.
        """
        from headwise.analysis.projections import output_weight

        found = calibration.contexts()
        values = {}
        for name, site in calibration.sites.items():
            fluctuation = (found.fit[name] + found.held[name]).matrix(centred=True).diagonal()
            weight = output_weight(calibration.model, site).double().cpu().numpy()
            columns = fluctuation * np.square(weight).sum(0)
            if self.normalize == "standard":
                columns = (columns - columns.mean()) / (columns.std(ddof=1) + 1e-20)
            values[name] = spread(site, columns.reshape(-1, site.head_dim).mean(1)[: len(site.kept)])
        return Scores(self.kind, values)
