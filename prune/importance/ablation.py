"""Ablation: what the loss does when one head is silenced, measured and not estimated."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from headwise.prune.importance.calibration import Calibration
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
    #: Forward-backward passes over the texts, and how many more per head: a forward pass is a third.
    passes: ClassVar[float] = 1 / 3
    passes_per_head: ClassVar[float] = 1 / 3

    kind: Literal["ablation"] = "ablation"

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head, in units of the loss per text.

        Raises:
            BadInput: there is no task.
        """
        import torch

        from headwise.analysis.errors import BadInput
        from headwise.analysis.gates import gated
        from headwise.analysis.progress import track
        from headwise.analysis.still import still

        if calibration.task is None:
            raise BadInput("score ablation needs a task with a loss; choose a task, or score magnitude or random")
        blocks = blocks_of(calibration.sites)
        heads = [(block, head) for block in blocks.values() for head in block.kept]
        sums, examples = np.zeros(1 + len(heads)), 0
        work = ((batch, index) for batch in calibration.batches for index in range(len(sums)))
        total = len(calibration.batches) * len(sums) if hasattr(calibration.batches, "__len__") else None
        with torch.no_grad(), still(calibration.model):
            for batch, index in track(work, total=total, label="Silencing heads one by one"):
                silenced = {}
                if index:
                    block, head = heads[index - 1]
                    silenced = {site.name: [head] for site in block.sites}
                else:
                    examples += len(batch.texts)
                with gated(calibration.model, silenced):
                    sums[index] += float(calibration.task.losses(calibration.model, batch).double().sum())
        values = {}
        rises = iter((sums[1:] - sums[0]) / max(examples, 1))
        for block in blocks.values():
            per_head = np.array([next(rises) for _ in block.kept]) / len(block.sites)
            values.update({site.name: spread(site, per_head) for site in block.sites})
        return Scores(self.kind, {name: values[name] for name in calibration.sites})
