"""Taylor to second order: what the loss would do without a head, signed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from headwise.analysis.sites import Site
from headwise.prune.importance.calibration import LOSSES, Calibration, Loss
from headwise.prune.importance.passes import Passes
from headwise.prune.importance.resampled import Resampled
from headwise.prune.importance.scores import Scores, spread


class Taylor2(BaseModel):
    """The loss without the head minus the loss with it, by a second-order expansion in its gate.

    From 1 to 0 the gate changes by -1, so dL_h = E_x[-g_h(x) + g_h(x)^2 / 2], with the squared gradient for the
    curvature (LeCun et al., 1990, "Optimal brain damage"; Molchanov et al., 2019, for the approximation). Negative
    where the loss would fall.

    Without labels the loss is how far the model gets from the dense one, which is least with all heads open: its first
    term is 0. What gradients of drawn predictions or directions average to is noise, so it is left out there.

    >>> Taylor2().kind
    'taylor2'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["taylor2"] = "taylor2"
    loss: Loss = Field(default="labels", description=LOSSES)

    def foretell(self, passes: Passes) -> None:
        """Count the pass of `score`."""
        passes.gradients(self.loss)

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head, in units of the loss per text.

        Raises:
            BadInput: no task, or a loss without gradient.
        """
        found, sites = calibration.gradients(loss=self.loss), calibration.sites
        values = partial(_values, found, sites, self.loss == "labels")
        return Scores(self.kind, values(), resampled=Resampled("texts drawn again", found.texts, values))


def _values(
    found: Any, sites: Mapping[str, Site], first: bool, weights: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """The expansion per head; `first`: with the first-order term."""
    values = {}
    for name, site in sites.items():
        sums = found.gates[name].total(weights)
        change = (sums.outer.diagonal() / 2 - (sums.signed if first else 0.0)) / found.count(weights)
        values[name] = spread(site, change[: len(site.kept)])
    return values
