"""Sequential: site after site is fitted to the dense model, with the inputs that the pruned sites before it give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.passes import Passes


class Sequential(BaseModel):
    """Least squares against the dense model, in forward order, so that earlier errors are repaired, too.

    From the first site that loses a head on, every output projection is refitted: its contexts are those of the
    pruned and so far repaired model, its target is what the dense block writes (`target: output`), or what the
    dense residual stream holds after it (`stream`; where the stream before a block is not known, its output).
    So a site that loses nothing may change, too (Park et al., 2024, "Accurate retraining-free pruning for pretrained
    encoder-based language models"). What enters each layer is kept by batch, so that about four forward passes do,
    however deep the model is; where layers do not run alone, it takes two to each site.

    >>> Sequential(target="stream").kind
    'sequential'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["sequential"] = "sequential"
    target: Literal["output", "stream"] = Field(
        default="stream", description="what is fitted: the dense block's output, or the dense stream after it"
    )
    ridge: float = Field(default=1e-2, gt=0, le=10, description="added to the diagonal, in units of its mean")
    bias: Literal["auto", "never"] = Field(default="auto", description="`auto` refits the bias where there is one")

    def foretell(self, passes: Passes) -> None:
        """Count the passes of `repair`: one to see how layers are called, each layer of both once to its site and through.

        >>> passes = Passes({}, texts=8, batches=2, scored=True)
        >>> Sequential().foretell(passes)
        >>> passes.forward, passes.back
        (4.0, 0.0)
        """
        passes.forward += 4

    def repair(self, calibration: Calibration, remove: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """Refit the projections in place and report the relative error per site.

        Raises:
            BadInput: a site whose contexts cannot be seen.
        """
        from headwise.prune.compensation.in_order import refit_in_order

        found = refit_in_order(
            calibration.model, calibration.sites, calibration.batches, remove,
            ridge=self.ridge, stream=self.target == "stream", with_bias=self.bias == "auto",
        )  # fmt: skip
        return {"kind": self.kind, "weight": "none", **found}
