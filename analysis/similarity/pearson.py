"""Pearson correlation of maps, each row centred on its own uniform distribution."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from headwise.analysis.capture.seen import Reducer, Seen
from headwise.analysis.corpus.batching import Batch
from headwise.analysis.similarity.gram import Gram
from headwise.analysis.sites import Site

#: A head closer to uniform than this (mean squared distance per row) has nothing to correlate.
_FLAT = 1e-12


class Pearson(Reducer):
    """r(g, h) = Σ (a_g − u)(a_h − u) / √(Σ (a_g − u)² · Σ (a_h − u)²) over all rows and allowed keys.

    u is 1/(number of allowed keys) of the row, so that the structure which all heads share (causal triangle,
    short rows, padding) does not count. Shuffling one head's keys within each row gives 0: the chance level.
    A head that is uniform everywhere has no correlation (NaN). An inner product in float32 per text, summed
    over texts in float64.

    >>> from headwise.analysis.corpus.texts import Text
    >>> site = Site("0", "a", "a.o", heads=2, kv_heads=2, head_dim=1, kept=(0, 1))
    >>> maps = torch.tensor([[[[0.9, 0.1]], [[0.2, 0.8]]]])
    >>> every = torch.ones(1, 1, 2, dtype=torch.bool)
    >>> pearson = Pearson({"0": site})
    >>> pearson.update(Batch({}, [Text("a")], {}), {"0": Seen(site, maps, None, every[:, :, 0], every)})
    >>> pearson.result()["similarity/pearson"].round(4).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """

    needs = frozenset({"maps"})
    totals = ("gram",)

    def __init__(self, sites: Mapping[str, Site], *, blocks: int = 0) -> None:
        self.gram = Gram(sites, blocks=blocks)

    def update(self, batch: Batch, seen: Mapping[str, Seen]) -> None:
        """Take in one batch."""
        # Sites with the same rule share the tensor that states it, and so their uniform maps.
        even = {id(one.allowed): one for one in seen.values()}
        self.gram.update(
            batch,
            seen,
            lambda one, texts, out: _centred(one, even[id(one.allowed)].uniform, texts, out),
            lambda one: one.allowed[0].numel(),
        )

    def result(self) -> dict[str, np.ndarray]:
        """`similarity/pearson` and its chance level, both `[head, head]`."""
        r = self.gram.cosines(least=_FLAT)
        return {"similarity/pearson": r, "similarity/pearson_chance": np.where(np.isnan(r), np.nan, 0.0)}


def _centred(one: Seen, uniform: Tensor, texts: slice, out: Tensor) -> None:
    space = out.view(*out.shape[:2], *one.allowed.shape[1:])
    # Keys that are not allowed have no weight and no uniform share: the difference is 0 by itself.
    torch.sub(one.map[texts], uniform[texts][:, None], out=space)
    if not one.complete:
        space.masked_fill_(~one.queries[texts][:, None, :, None], 0.0)
