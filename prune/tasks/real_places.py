"""Real places: which of a model's outputs stand at tokens of a text, and not at padding."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Bool
from torch import Tensor

from headwise.analysis.corpus.batching import Batch


def real_places(batch: Batch, shape: Sequence[int]) -> Bool[Tensor, "batch token"] | None:
    """Where tokens are real, for outputs of a shape; None if they are not one for each token.

    >>> real_places(Batch({}, [], {}), (2, 3)) is None
    True
    """
    streams = (batch.tokens.get(name) for name in ("decoder", ""))
    return next((tokens.valid for tokens in streams if tokens is not None and tokens.valid.shape == tuple(shape)), None)
