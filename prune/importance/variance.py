"""Variance: what of a head a bias could not replace."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from headwise.analysis.sites import Site
from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.passes import Passes
from headwise.prune.importance.resampled import Resampled
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

    kind: Literal["variance"] = "variance"
    normalize: Literal["none", "standard"] = Field(
        default="none", description="`standard`: columns less their site's mean, by its standard deviation"
    )

    def foretell(self, passes: Passes) -> None:
        """Count the pass of `score`."""
        passes.contexts()

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head, in squared units of the block's output (or standard deviations).

        Raises:
            BadInput: a site whose contexts cannot be seen.
        """
        from headwise.analysis.sites.projections import output_weight

        found, sites, squares = calibration.contexts(), calibration.sites, {}
        for name, site in sites.items():
            squares[name] = np.square(output_weight(calibration.model, site).double().cpu().numpy()).sum(0)
        resampled = Resampled("texts drawn again", found.texts, partial(self._values, found, sites, squares))
        return Scores(self.kind, self._values(found, sites, squares), resampled=resampled)

    def _values(
        self,
        found: Any,
        sites: Mapping[str, Site],
        squares: Mapping[str, np.ndarray],
        weights: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        values = {}
        for name, site in sites.items():
            columns = found.columns[name].squares(centred=True, weights=weights) * squares[name]
            if self.normalize == "standard":
                columns = (columns - columns.mean()) / (columns.std(ddof=1) + 1e-20)
            values[name] = spread(site, columns.reshape(-1, site.head_dim).mean(1)[: len(site.kept)])
        return values
