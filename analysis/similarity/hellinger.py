"""Hellinger affinity of maps: how much two heads' distributions overlap, row by row."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from headwise.analysis.capture.seen import Reducer, Seen
from headwise.analysis.corpus.batching import Batch
from headwise.analysis.similarity.gram import Gram
from headwise.analysis.sites import Site


class Hellinger(Reducer):
    """1 − H²(a_g, a_h), averaged over rows: Σ √(a_g·a_h), the Bhattacharyya coefficient (Hellinger 1909).

    1 for equal maps, 0 for maps without a common key. Shuffling one head's keys within each row gives
    b_g·b_h on average, b = Σ √(a/n) the row's affinity with the uniform distribution over its n allowed keys:
    the chance level, exact.

    >>> from headwise.analysis.corpus.texts import Text
    >>> site = Site("0", "a", "a.o", heads=2, kv_heads=2, head_dim=1, kept=(0, 1))
    >>> maps = torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]]]])
    >>> every = torch.ones(1, 1, 2, dtype=torch.bool)
    >>> hellinger = Hellinger({"0": site})
    >>> hellinger.update(Batch({}, [Text("a")], {}), {"0": Seen(site, maps, None, every[:, :, 0], every)})
    >>> hellinger.result()["similarity/hellinger"].round(4).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    needs = frozenset({"maps"})
    totals = ("gram", "chance")

    def __init__(self, sites: Mapping[str, Site], *, blocks: int = 0) -> None:
        self.gram = Gram(sites, blocks=blocks)
        self.chance = Gram(sites)

    def update(self, batch: Batch, seen: Mapping[str, Seen]) -> None:
        """Take in one batch."""
        even: dict[str, Tensor] = {}

        def roots(one: Seen, texts: slice, out: Tensor) -> None:
            space = out.view(*out.shape[:2], *one.allowed.shape[1:])
            torch.sqrt(one.map[texts], out=space)
            if not one.complete:
                space.masked_fill_(~one.queries[texts][:, None, :, None], 0.0)
            if one.site.name not in even:
                even[one.site.name] = torch.zeros(one.map.shape[:3], device=out.device)
            even[one.site.name][texts] = space.sum(-1)

        def affinity(one: Seen, texts: slice, out: Tensor) -> None:
            torch.mul(even[one.site.name][texts], one.choices[texts].clamp(min=1).rsqrt()[:, None], out=out)

        self.gram.update(batch, seen, roots, lambda one: one.allowed[0].numel())
        self.chance.update(batch, seen, affinity, lambda one: one.allowed.shape[1])

    def result(self) -> dict[str, np.ndarray]:
        """`similarity/hellinger` and its chance level, both `[head, head]`."""
        return {
            "similarity/hellinger": self._per_row(self.gram),
            "similarity/hellinger_chance": self._per_row(self.chance),
        }

    def _per_row(self, gram: Gram) -> np.ndarray:
        rows = np.where(gram.rows > 0, gram.rows, np.nan)
        found = np.clip(gram.products / np.sqrt(np.outer(rows, rows)), 0, 1)
        found[~gram.compared] = np.nan
        return np.asarray((found + found.T) / 2)
