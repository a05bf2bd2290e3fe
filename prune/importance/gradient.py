"""Gradient: how much the loss leans on a head, to first order."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from headwise.prune.importance.calibration import Calibration
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
    #: Forward-backward passes over the calibration texts, and how many more per head.
    passes: ClassVar[float] = 1
    passes_per_head: ClassVar[float] = 0

    kind: Literal["gradient"] = "gradient"
    variant: Literal["per-example", "per-token", "per-batch"] = Field(
        default="per-example", description="where the absolute value is taken"
    )
    normalize: Literal["none", "site"] = Field(
        default="none", description="`site` divides by the site's Euclidean norm"
    )

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head, in units of the loss per text (per token for `per-token`).

        Raises:
            BadInput: no task, or a loss without gradient.
        """
        found = calibration.gradients()
        values = {}
        for name, site in calibration.sites.items():
            sums = found.gates[name]
            raw = {
                "per-example": sums.absolute / found.examples,
                "per-token": sums.per_token / max(sums.tokens, 1),
                "per-batch": sums.per_batch / found.examples,
            }[self.variant]
            per_head = raw.cpu().numpy()
            if self.normalize == "site":
                per_head = per_head / (np.linalg.norm(per_head) + 1e-20)
            values[name] = spread(site, per_head[: len(site.kept)])
        return Scores(self.kind, values)
