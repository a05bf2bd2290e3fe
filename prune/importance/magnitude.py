"""Magnitude: how large the weights are that write a head's result into the stream."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.passes import Passes
from headwise.prune.importance.resampled import untouched
from headwise.prune.importance.scores import Scores, spread


class Magnitude(BaseModel):
    """Frobenius norm of a head's columns of the output projection; looks at no text.

    >>> Magnitude().kind
    'magnitude'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["magnitude"] = "magnitude"
    normalize: Literal["none", "site"] = Field(
        default="none", description="`site` divides by the site's Euclidean norm"
    )

    def foretell(self, passes: Passes) -> None:
        """Count the passes of `score`: none."""

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head: the norm of W_O's columns."""
        from headwise.analysis.sites.projections import output_weight

        values = {}
        for name, site in calibration.sites.items():
            weight = output_weight(calibration.model, site).double().cpu().numpy()
            norms = np.sqrt((weight.reshape(len(weight), -1, site.head_dim) ** 2).sum((0, 2)))
            if self.normalize == "site":
                norms = norms / (np.linalg.norm(norms) + 1e-20)
            # A site that lost every head keeps one ghost: it has no original index and no score.
            values[name] = spread(site, norms[: len(site.kept)])
        return Scores(self.kind, values, resampled=untouched(values, "the weights alone rank: no text is looked at"))
