"""Finite: numbers that are none are told where they come from, before sums and solvers carry them on."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.analysis.corpus.batching import Batch
from headwise.analysis.errors import BadInput


def require_finite(values: Tensor, what: str, batch: Batch) -> None:
    """Return if every number of every text is finite.

    Args:
        values: [batch, ...].
        what: they are, in words.
        batch: its texts.

    Raises:
        BadInput: naming the first text that has others.

    >>> from headwise.analysis.corpus.texts import Text
    >>> require_finite(torch.tensor([1.0, torch.nan]), "the loss", Batch({}, [Text("a"), Text("b")], {}))
    Traceback (most recent call last):
    headwise.analysis.errors.BadInput: the loss: not finite for the text 'b'; leave it out, or use float32 (model.dtype)
    """
    good = torch.isfinite(values).flatten(1).all(1) if values.ndim > 1 else torch.isfinite(values)
    if not bool(good.all()):
        worst = batch.texts[int((~good).nonzero()[0])]
        others = int((~good).sum()) - 1
        more = f" and {others} others of its batch of {len(good)}" if others else ""
        raise BadInput(
            f"{what}: not finite for the text {worst.text!r:.80}{more}; leave it out, or use float32 (model.dtype)"
        )
