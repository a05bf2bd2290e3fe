"""In numbers: what a model says of a text has to be some, or it would be judged by the texts that are left."""

from __future__ import annotations

from torch import Tensor

from headwise.analysis.corpus.batching import Batch
from headwise.analysis.errors import BadInput
from headwise.prune.tasks.real_places import real_places


def in_numbers(said: Tensor, batch: Batch) -> Tensor:
    """The same, if there are numbers for every text and real token; what stands at padding may be anything.

    Of what is judged; a loss that is none tells a search, or a score, by itself.

    Args:
        said: [batch], [batch, output] or [batch, token, output].
        batch: its texts.

    Raises:
        BadInput: a text of which the model says NaN; it is the first that is named.

    >>> import torch
    >>> from headwise.analysis.corpus.texts import Text
    >>> in_numbers(torch.tensor([1.0, torch.nan]), Batch({}, [Text("a"), Text("b")], {}))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    headwise.analysis.errors.BadInput: the model says no numbers (NaN) of 1 of 2 texts of a batch, the first 'b'; ...
    """
    # One NaN is enough, as the likeliest of others and of it is it. `amax` hands it on, and of the scores of all tokens
    # makes no second tensor of that size.
    none = (said.amax(-1) if said.ndim > 1 else said).isnan()
    if none.ndim > 1:
        real = real_places(batch, none.shape)
        none = none.flatten(1).all(1) if real is None else (none & real.to(none.device)).any(1)
    if bool(none.any()):
        first = batch.texts[int(none.nonzero()[0])]
        raise BadInput(
            f"the model says no numbers (NaN) of {int(none.sum())} of {len(none)} texts of a batch, the first "
            f"{first.text!r:.80}; load it in float32 (model.dtype), or see whether its weights are whole"
        )
    return said
