"""Gates: learn which heads to keep, by training a gate for each on frozen weights."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.scores import Scores, spread


class Gates(BaseModel):
    """How open a head's gate is after training all gates together on the task's loss; the weights stay as they are.

    `hard-concrete` draws gates that are often exactly 0 or 1 and adds a price for every open one (Voita et al., 2019,
    "Analyzing multi-head self-attention"; Louizos et al., 2018); the score is a gate's log alpha. `subset` keeps
    exactly `keep` of all heads at every step by a differentiable choice (Li et al., 2021, "Differentiable subset
    pruning of transformer heads"); the score is a head's logit.

    >>> Gates(steps=10).form
    'hard-concrete'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    passes_per_head: ClassVar[float] = 0

    kind: Literal["gates"] = "gates"
    form: Literal["hard-concrete", "subset"] = Field(default="hard-concrete", description="how gates are drawn")
    steps: int = Field(default=200, ge=1, le=1_000_000, strict=True, description="batches that are trained on")
    rate: float = Field(default=0.1, gt=0, le=10, description="learning rate (Adam)")
    price: float = Field(default=0.01, ge=0, le=1e6, description="of an open gate, in the loss per text; hard-concrete")
    keep: float = Field(default=0.5, gt=0, lt=1, description="share of heads that stay open at every step; subset")

    @property
    def passes(self) -> float:
        """Forward-backward passes: unknown before the texts are; one batch a step, taken as one in thirty-two.

        >>> Gates(steps=64).passes
        2.0
        """
        return self.steps / 32

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head: the larger, the more open.

        Raises:
            BadInput: no task, or a loss that the gates cannot change or that is not finite.
        """
        from headwise.prune.importance.learning import learned

        found = learned(calibration, self)
        values = {name: spread(site, found[name][: len(site.kept)]) for name, site in calibration.sites.items()}
        return Scores(self.kind, values)
