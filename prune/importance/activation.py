"""Activation: how much a head says."""

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


class Activation(BaseModel):
    """Mean length, over tokens, of a head's context; no loss is needed.

    Muralidharan et al., 2024 ("Compact language models via pruning and knowledge distillation", Minitron) take the
    plain mean (`mean: length`); the root of the mean square (`mean: square`) leans more on the few tokens where a
    head says much.

    >>> Activation().kind
    'activation'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["activation"] = "activation"
    mean: Literal["square", "length"] = Field(
        default="square", description="root of the mean squared length, or the mean length as in Minitron"
    )
    normalize: Literal["none", "site"] = Field(
        default="none", description="`site` divides by the site's Euclidean norm"
    )

    def foretell(self, passes: Passes) -> None:
        """Count the pass of `score`."""
        passes.contexts()

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head, in the unit of the contexts.

        Raises:
            BadInput: a site whose contexts cannot be seen.
        """
        found, sites = calibration.contexts(), calibration.sites
        resampled = Resampled("texts drawn again", found.texts, partial(self._values, found, sites))
        return Scores(self.kind, self._values(found, sites), resampled=resampled)

    def _values(
        self, found: Any, sites: Mapping[str, Site], weights: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        values = {}
        for name, site in sites.items():
            if self.mean == "square":
                squares = found.columns[name].squares(centred=False, weights=weights)
                lengths = np.sqrt(squares.reshape(-1, site.head_dim).sum(1))
            else:
                lengths = found.columns[name].mean_lengths(weights)
            if self.normalize == "site":
                lengths = lengths / (np.linalg.norm(lengths) + 1e-20)
            values[name] = spread(site, lengths[: len(site.kept)])
        return values
