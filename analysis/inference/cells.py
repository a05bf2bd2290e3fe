"""Sums per cell of texts: what intervals need, in memory that does not grow with the data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise.analysis.corpus.texts import Text

#: Texts are spread over this many cells by their content, whatever their order and batches.
CELLS = 256
#: Where sums would be large beside the model, cells are put together in this many parts (cell modulo this).
PARTS = 64


def cells_of(texts: Sequence[Text]) -> Int[Tensor, " batch"]:
    """The cell of each text, from its content hash.

    >>> int(cells_of([Text("a dog")])[0]) == int(cells_of([Text("a cat"), Text("a dog")])[1])
    True
    """
    return torch.tensor([int(text.id, 16) % CELLS for text in texts], dtype=torch.long)


def add_by_cell(
    total: Float[Tensor, "cell ..."], cells: Int[Tensor, " batch"], values: Float[Tensor, "batch ..."]
) -> None:
    """Add each text's values to its cell, in float64; `total` changes in place.

    >>> total = torch.zeros(CELLS, 1, dtype=torch.float64)
    >>> add_by_cell(total, torch.tensor([3, 3]), torch.ones(2, 1))
    >>> float(total[3])
    2.0
    """
    total.index_add_(0, cells, values.to(total))
