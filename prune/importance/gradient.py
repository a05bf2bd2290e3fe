"""Gradient: how much the loss leans on a head, to first order."""

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


class Gradient(BaseModel):
    """Mean absolute gradient of the loss at a head's gate (Michel et al., 2019, "Are sixteen heads …").

    I_h = E_x |dL(x)/dgate_h|, with the sum over a text's tokens inside the absolute value: exact for any
    batch size and padding. `per-token` takes the absolute value token by token, as the paper's published
    code does; `per-batch` takes it after summing the batch, as many tools do, and so depends on the batches.

    >>> Gradient(normalize="site").kind
    'gradient'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["gradient"] = "gradient"
    variant: Literal["per-example", "per-token", "per-batch"] = Field(
        default="per-example", description="where the absolute value is taken"
    )
    normalize: Literal["none", "site"] = Field(
        default="none", description="`site` divides by the site's Euclidean norm"
    )
    loss: Loss = Field(default="labels", description=LOSSES)

    def foretell(self, passes: Passes) -> None:
        """Count the pass of `score`."""
        passes.gradients(self.loss)

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head, in units of the loss per text (per token for `per-token`).

        Raises:
            BadInput: no task, or a loss without gradient.
        """
        found = calibration.gradients(loss=self.loss)
        return Scores(self.kind, self._values(found, calibration.sites), resampled=self._resampled(found, calibration))

    def _values(
        self, found: Any, sites: Mapping[str, Site], weights: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        values = {}
        for name, site in sites.items():
            sums = found.gates[name].total(weights)
            if self.variant == "per-token":
                per_head = sums.per_token / max(sums.tokens, 1)
            elif self.variant == "per-example":
                per_head = sums.absolute / found.count(weights)
            else:
                per_head = sums.per_batch / found.count(weights)
            if self.normalize == "site":
                per_head = per_head / (np.linalg.norm(per_head) + 1e-20)
            values[name] = spread(site, per_head[: len(site.kept)])
        return values

    def _resampled(self, found: Any, calibration: Calibration) -> Resampled:
        values = partial(self._values, found, calibration.sites)
        if self.variant == "per-batch":
            # The sum over a batch is all that is known of its texts.
            return Resampled("whole batches drawn again", found.batches, values)
        return Resampled("texts drawn again", found.texts, values)
