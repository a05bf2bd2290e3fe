"""Ablation: what the loss does when one head is silenced, measured and not estimated."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from headwise.analysis.sites import Site
from headwise.prune.importance.calibration import DISTANCES, Calibration, Loss
from headwise.prune.importance.passes import Passes
from headwise.prune.importance.resampled import PARTS, Resampled, weighted
from headwise.prune.importance.scores import Scores, spread
from headwise.prune.selection.blocks import blocks_of


class Ablation(BaseModel):
    """Mean loss with the head silenced minus mean loss as it is: one forward pass per head, exact.

    Negative where the model is better off without the head. Where layers share a module (ALBERT) the head is
    silenced in all its calls, since it can only be removed from all, and the calls share the difference.

    >>> Ablation().kind
    'ablation'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["ablation"] = "ablation"
    loss: Loss = Field(default="labels", description=DISTANCES)

    def foretell(self, passes: Passes) -> None:
        """Count the passes of `score`: with each head silenced and with none, and the dense model's where it is the goal."""
        heads = sum(len(block.kept) for block in blocks_of(passes.sites).values())
        passes.forward += 1 + heads + (self.loss != "labels")

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head, in units of the loss per text.

        Raises:
            BadInput: there is no task, the model predicts nothing to diverge from, or a loss is not finite.
        """
        sums, texts = self._sums(calibration)
        values = partial(_values, sums, texts, calibration.sites)
        return Scores(self.kind, values(), resampled=Resampled("texts drawn again", texts, values))

    def _sums(self, calibration: Calibration) -> tuple[np.ndarray, np.ndarray]:
        """Summed losses by part of the texts and silenced head (none first), [part, 1 + head]; texts by part."""
        import torch

        from headwise.analysis.gates import gated
        from headwise.analysis.gates.still import still
        from headwise.analysis.progress import track
        from headwise.prune.importance.apart import losses_of
        from headwise.prune.importance.finite import require_finite
        from headwise.prune.importance.parts import parts_of

        blocks = blocks_of(calibration.sites)
        heads = [(block, head) for block in blocks.values() for head in block.kept]
        sums, texts = np.zeros((PARTS, 1 + len(heads))), np.zeros(PARTS)
        work = ((batch, index) for batch in calibration.batches for index in range(1 + len(heads)))
        total = len(calibration.batches) * (1 + len(heads)) if hasattr(calibration.batches, "__len__") else None
        asked = losses_of(calibration, self.loss, self.kind)
        with torch.no_grad(), still(calibration.model):
            for batch, index in track(work, total=total, label="Silencing heads one by one"):
                silenced = {}
                if index:
                    block, head = heads[index - 1]
                    silenced = {site.name: [head] for site in block.sites}
                else:
                    np.add.at(texts, parts_of(batch.texts).numpy(), 1)
                    losses = asked(batch)
                with gated(calibration.model, silenced):
                    found = losses(calibration.model).double()
                where = "".join(f" without head {head} of site {name}" for name, (head,) in silenced.items())
                require_finite(found, f"score {self.kind}: the loss{where}", batch)
                np.add.at(sums[:, index], parts_of(batch.texts).numpy(), found.cpu().numpy())
        return sums, texts


def _values(
    sums: np.ndarray, texts: np.ndarray, sites: Mapping[str, Site], weights: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """How much the mean loss rises with each head silenced; calls of one module share it."""
    means = weighted(sums, weights) / max(float(weighted(texts, weights)), 1.0)
    rises, values = iter(means[1:] - means[0]), {}
    for block in blocks_of(sites).values():
        per_head = np.array([next(rises) for _ in block.kept]) / len(block.sites)
        values.update({site.name: spread(site, per_head) for site in block.sites})
    return {name: values[name] for name in sites}
