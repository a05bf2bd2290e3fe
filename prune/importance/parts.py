"""Parts: which texts are drawn again together when a score is tried on resampled texts."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Int
from torch import Tensor

from headwise.analysis.corpus.texts import Text
from headwise.analysis.inference.cells import PARTS, cells_of


def parts_of(texts: Sequence[Text]) -> Int[Tensor, " batch"]:
    """The part of each text, by its content: whatever its place and batch.

    >>> bool((parts_of([Text("a dog")]) < PARTS).all())
    True
    """
    # A part is a few whole cells, so that what the evidence keeps by cell can be drawn by part.
    return cells_of(texts) % PARTS
