"""Divergence: how far a model's predictions are from those of another."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, ones_like
from torch import bool as boolean

from headwise.analysis.batching import Batch


def divergence(wanted: Tensor, given: Tensor, batch: Batch) -> Float[Tensor, " batch"]:
    """KL(wanted || given) of a text, in nats, averaged over its tokens where there is a prediction for each.

    One class is a number: then half the squared distance, as for normal distributions of unit variance.

    Args:
        wanted: logits of the one model, [batch, class] or [batch, token, class].
        given: of the other.
        batch: its texts; padded tokens do not count.
    """
    if wanted.shape[-1] == 1:
        each = (wanted - given).square().sum(-1) / 2
    else:
        log_p, log_q = wanted.log_softmax(-1), given.log_softmax(-1)
        each = (log_p.exp() * (log_p - log_q)).sum(-1)
    if each.ndim == 1:
        return each
    streams = (batch.tokens.get(name) for name in ("decoder", ""))
    masks = [tokens.valid for tokens in streams if tokens is not None and tokens.valid.shape == each.shape]
    rows = masks[0].to(each.device) if masks else ones_like(each, dtype=boolean)
    return (each * rows).sum(-1) / rows.sum(-1).clamp(min=1)
