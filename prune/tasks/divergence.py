"""Divergence: how far a model's predictions are from those of another."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn, ones_like
from torch import bool as boolean

from headwise.analysis.corpus.batching import Batch
from headwise.prune.tasks.real_places import real_places


def independent(model: nn.Module) -> bool:
    """Whether each of a model's classes is a yes or no of its own (several labels a text).

    >>> independent(nn.Linear(1, 1))
    False
    """
    return getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification"


def divergence(wanted: Tensor, given: Tensor, batch: Batch, *, independent: bool = False) -> Float[Tensor, " batch"]:
    """KL(wanted || given) of a text, in nats, averaged over its tokens where there is a prediction for each.

    One class is a number: then half the squared distance, as for normal distributions of unit variance.

    Args:
        wanted: logits of the one model, [batch, class] or [batch, token, class].
        given: of the other.
        batch: its texts; padded tokens do not count.
        independent: whether each class is a yes or no of its own.
    """
    if wanted.shape[-1] == 1:
        each = (wanted - given).square().sum(-1) / 2
    elif independent:
        yes, no = (nn.functional.logsigmoid(sign * wanted) for sign in (1, -1))
        other_yes, other_no = (nn.functional.logsigmoid(sign * given) for sign in (1, -1))
        each = (yes.exp() * (yes - other_yes) + no.exp() * (no - other_no)).sum(-1)
    else:
        log_p, log_q = wanted.log_softmax(-1), given.log_softmax(-1)
        each = (log_p.exp() * (log_p - log_q)).sum(-1)
    if each.ndim == 1:
        return each
    real = real_places(batch, each.shape)
    rows = ones_like(each, dtype=boolean) if real is None else real.to(each.device)
    # What stands at padding may be anything, infinity included.
    return each.masked_fill(~rows, 0.0).sum(-1) / rows.sum(-1).clamp(min=1)
