"""Reconstruction: the kept heads stand in for the removed ones, by least squares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from headwise.prune.compensation.apply import apply
from headwise.prune.importance.calibration import AUTO, Calibration, Loss
from headwise.prune.importance.passes import Passes


class Reconstruct(BaseModel):
    """The output projection that comes closest to the dense block's output, in closed form, no training.

    Least squares on the calibration texts with a small ridge towards the weights as they are. Where the
    projection has a bias, contexts are centred and the bias takes what is left of the mean (`bias: auto`);
    no bias is added to a projection that has none. With `weight: gradient` tokens count by the squared
    gradient of the loss at the block's output, so that the repair is best where the loss feels it.

    The values of the heads that stay are then refitted along with the projection (`values: refit`): what a head reads
    through its map holds more than its own few features, also what the heads that go had to say; see
    `values.refit_values`. `auto` does so where the outputs are scores of whole texts.

    What is still missing in the model's own outputs is then brought back by one linear least-squares step through
    all repaired blocks at once (`correct: outputs`); see `correction.correct`. It needs no labels. `auto` does so
    where the outputs are scores of whole texts: of thousands of tokens' outputs a text tells too little.

    >>> Reconstruct().bias
    'auto'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["reconstruction"] = "reconstruction"
    weight: Literal["gradient", "none"] = Field(
        default="none", description="whether tokens count by the loss's gradient"
    )
    loss: Loss | Literal["auto"] = Field(default="auto", description=f"of `weight: gradient`; {AUTO}")
    ridge: float = Field(default=1e-2, gt=0, le=10, description="added to the diagonal, in units of its mean")
    bias: Literal["auto", "never"] = Field(default="auto", description="`auto` refits the bias where there is one")
    correct: Literal["auto", "outputs", "none"] = Field(
        default="auto",
        description="`outputs` then brings the outputs back to the dense model's; `auto` if they score whole texts",
    )

    values: Literal["auto", "refit", "keep"] = Field(
        default="auto",
        description="whether the values of heads that stay are refitted, too; `auto` if outputs score whole texts",
    )

    @model_validator(mode="after")
    def _means_go_somewhere(self) -> Reconstruct:
        if self.values == "refit" and self.bias == "never":
            raise ValueError("values: refit leaves it to the bias to take the means, which bias: never forbids")
        return self

    def foretell(self, passes: Passes) -> None:
        """Count the passes of `repair`.

        >>> passes = Passes({}, texts=640, batches=20, scored=True)
        >>> Reconstruct(correct="none", values="keep").foretell(passes)
        >>> passes.forward, passes.back
        (1.0, 0.0)
        """
        from headwise.prune.compensation.correction import SAMPLE

        corrected, refitted = self.goes_on("auto" in (self.correct, self.values) and passes.scores_texts())
        few = min(SAMPLE / max(passes.texts, 1), 1.0)
        if corrected:
            passes.outputs()
        if refitted:
            # What the outputs feel, of a few texts; then the maps.
            passes.back += few
            passes.forward += 1
        passes.moments(self.weight, self.loss)
        if corrected:
            if refitted:
                # With other values contexts are others.
                passes.forward += 1
            else:
                passes.contexts()
            passes.back += few + 1

    def repair(self, calibration: Calibration, remove: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """Refit the projections and report the relative error per site.

        Raises:
            BadInput: `weight: gradient` without a task, or a loss without gradient.
        """
        from headwise.prune.compensation.apply import lost_of
        from headwise.prune.compensation.correction import correct
        from headwise.prune.compensation.values import read_values, refit_values

        lost = lost_of(calibration.sites, remove)
        auto = "auto" in (self.correct, self.values) and bool(lost) and calibration.scores_texts()
        corrected, refitted = self.goes_on(auto)
        wanted = calibration.outputs() if lost and corrected else {}
        reads = read_values(calibration, lost) if lost and refitted else []
        report = {"kind": self.kind, **apply(calibration, remove, self._refit, self.weight, self.loss)}
        if reads:
            report["values"] = refit_values(calibration.model, reads, self.ridge)
        if wanted:
            anew = bool(report.get("values"))
            report["correction"] = correct(calibration, lost, wanted, self.ridge, self.bias == "auto", anew)
        return report

    def goes_on(self, scores_texts: bool) -> tuple[bool, bool]:
        """Whether outputs are corrected, and whether values are refitted, where outputs score whole texts or do not."""
        corrected = self.correct == "outputs" or (self.correct == "auto" and scores_texts)
        refitted = self.values == "refit" or (self.values == "auto" and scores_texts)
        return corrected, refitted and self.bias == "auto"

    def _refit(
        self, weight: np.ndarray, moments: Any, gone: np.ndarray, has_bias: bool, _width: int
    ) -> tuple[np.ndarray, np.ndarray]:
        from headwise.prune.compensation.repair import refitted

        with_bias = has_bias and self.bias == "auto"
        new = refitted(weight, moments.matrix(centred=with_bias), gone, self.ridge)
        if not with_bias:
            return new, np.zeros(len(weight))
        lost = weight - new
        lost[:, gone] = weight[:, gone]
        return new, lost @ moments.mean()
