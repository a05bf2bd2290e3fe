"""Gates: learn which heads to keep, by training a gate for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from headwise.analysis.errors import BadInput
from headwise.prune.importance.calibration import DISTANCES, Calibration, Loss
from headwise.prune.importance.passes import Passes
from headwise.prune.importance.resampled import Resampled, apart
from headwise.prune.importance.scores import Scores, spread


class Gates(BaseModel):
    """How open a head's gate is after training all gates together: on the task's loss, or without labels.

    `hard-concrete` draws gates that are often exactly 0 or 1 and adds a price for every open one (Voita et al., 2019,
    "Analyzing multi-head self-attention"; Louizos et al., 2018); the score is a gate's log alpha. With `heads` or
    `keep` there is no price: at every step all log alphas are moved together so that just as many gates are expected
    to be open. `subset` keeps exactly `heads`, or `keep` of all heads, at every step by a differentiable choice (Li
    et al., 2021, "Differentiable subset pruning of transformer heads"); the score is a head's logit.

    With `loss: predictions` the gates learn to say what the dense model says (the divergence from it, averaged over
    texts), with `outputs` to put out what it puts out; both read raw text and cost one more forward pass a step.

    With `weights: free` a copy of the model learns along with the gates, as it would recover after the cut; the copy
    is thrown away, and the plan is one for the model as it was.

    How firm the ranking is, no sums can say: `again` trains so many times more, each on another half of the texts (the
    other half next) and with other draws, and takes as much longer.

    >>> Gates(steps=10).form
    'hard-concrete'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["gates"] = "gates"
    loss: Loss = Field(default="labels", description=DISTANCES)
    form: Literal["hard-concrete", "subset"] = Field(default="hard-concrete", description="how gates are drawn")
    steps: int = Field(default=200, ge=1, le=1_000_000, strict=True, description="batches that are trained on")
    rate: float = Field(default=0.1, gt=0, le=10, description="learning rate (Adam)")
    price: float | None = Field(
        default=None,
        ge=0,
        le=1e6,
        description="of an open gate, in the loss per text; hard-concrete (0.01 if left out)",
    )
    keep: float | None = Field(
        default=None, gt=0, lt=1, description="share of heads that stay open; subset takes a half if left out"
    )
    heads: int | None = Field(default=None, ge=1, strict=True, description="heads that stay open, instead of a share")
    weights: Literal["frozen", "free"] = Field(
        default="frozen", description="whether the weights of a copy learn along; free takes the memory of training"
    )
    again: int = Field(
        default=0,
        ge=0,
        le=6,
        strict=True,
        description="trainings more, on halves of the texts, that only say how firm the ranking is; each takes as long",
    )
    weights_rate: float = Field(default=2e-5, gt=0, le=1, description="learning rate of free weights (Adam)")

    @model_validator(mode="after")
    def _one_aim(self) -> Gates:
        aims = [name for name in ("price", "keep", "heads") if getattr(self, name) is not None]
        if len(aims) > 1:
            raise ValueError(f"give one of price, keep, heads (got {', '.join(aims)})")
        if self.form == "subset" and aims == ["price"]:
            raise ValueError("a price belongs to form: hard-concrete; subset takes keep or heads")
        if self.weights == "frozen" and self.weights_rate != type(self).model_fields["weights_rate"].default:
            raise ValueError("weights_rate belongs to weights: free; frozen weights do not learn")
        return self

    def target(self, heads: int) -> int | None:
        """How many of so many heads stay open; None if a price decides.

        >>> Gates(keep=0.25).target(12), Gates(form="subset", heads=5).target(12), Gates().target(12)
        (3, 5, None)

        Raises:
            BadInput: more are to stay open than there are, or as many.
        """
        if self.heads is not None:
            if self.heads >= heads:
                raise BadInput(f"score.heads: {self.heads} gates cannot be all that stay open of {heads}; give fewer")
            return self.heads
        if self.keep is None and self.form == "hard-concrete":
            return None
        share = 0.5 if self.keep is None else self.keep
        return min(max(round(share * heads), 1), heads - 1) if heads > 1 else 1

    def foretell(self, passes: Passes) -> None:
        """Count the passes of `score`: a batch a step.

        >>> passes = Passes({}, texts=64, batches=8, scored=True)
        >>> Gates(steps=16, loss="predictions", again=1).foretell(passes)
        >>> passes.back, passes.forward
        (4.0, 4.0)
        """
        taken = (1 + self.again) * self.steps / max(passes.batches, 1)
        passes.back += taken
        passes.forward += taken * (self.loss != "labels")

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head: the larger, the more open.

        Raises:
            BadInput: no task, no predictions, or a loss that the gates cannot change or that is not finite.
        """
        from headwise.prune.importance.learning import texts_by_part

        values = self._values(calibration)
        if self.again:
            how = "trained anew each time, on half of the texts and with other draws"
            trained = [self._values(calibration, half, place) for place, half in enumerate(apart(self.again), start=1)]
            resampled = Resampled(how, texts_by_part(calibration, self.steps), trained=trained)
        else:
            how = "gates are trained batch by batch: other texts would take another training; `score.again: 2` asks for two"
            resampled = Resampled(how)
        return Scores(self.kind, values, notes=self._notes(calibration, values), resampled=resampled)

    def _notes(self, calibration: Calibration, values: Mapping[str, np.ndarray]) -> dict[str, dict[int, str]]:
        """How often each gate is open, where that is what the score says."""
        if self.form != "hard-concrete":
            return {}
        import torch

        from headwise.prune.importance.learning import open_probability

        found = {}
        for name, site in calibration.sites.items():
            shares = (100 * open_probability(torch.from_numpy(values[name]))).tolist()
            found[name] = {head: f"its gate is open in {shares[head]:.0f} % of draws" for head in site.kept}
        return found

    def _values(
        self, calibration: Calibration, half: np.ndarray | None = None, training: int = 0
    ) -> dict[str, np.ndarray]:
        from headwise.prune.importance.learning import learned

        found = learned(calibration, self, half, training)
        return {name: spread(site, found[name][: len(site.kept)]) for name, site in calibration.sites.items()}
