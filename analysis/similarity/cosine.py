"""Cosine of contexts: whether two heads hand on the same vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.analysis.capture.seen import Reducer, Seen, positions_of
from headwise.analysis.corpus.batching import Batch
from headwise.analysis.similarity.gram import Gram, comparable
from headwise.analysis.sites import Site


class Cosine(Reducer):
    """Σ ⟨c_g, c_h⟩ / √(Σ ‖c_g‖² · Σ ‖c_h‖²) over all query rows, c the context of a head.

    Two heads write in bases of their own, so a low value does not make them different; a high one makes them
    copies. Pairing each row with another at random gives ⟨mean c_g, mean c_h⟩ over the same norms: the chance
    level, exact. Heads of different width are not compared (NaN).

    >>> from headwise.analysis.corpus.texts import Text
    >>> site = Site("0", "a", "a.o", heads=2, kv_heads=2, head_dim=1, kept=(0, 1))
    >>> contexts = torch.tensor([[[[1.0], [-2.0]], [[3.0], [-6.0]]]])
    >>> every = torch.ones(1, 2, 2, dtype=torch.bool)
    >>> cosine = Cosine({"0": site})
    >>> cosine.update(Batch({}, [Text("a")], {}), {"0": Seen(site, None, contexts, every[:, :, 0], every)})
    >>> cosine.result()["similarity/cosine"].round(4).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """

    needs = frozenset({"contexts"})
    totals = ("gram", "_sums")

    def __init__(self, sites: Mapping[str, Site], *, blocks: int = 0) -> None:
        self.gram = Gram(sites, group=_comparable, blocks=blocks)
        self._at = positions_of(sites)
        widest = max((site.head_dim for site in sites.values()), default=0)
        self._sums = np.zeros((len(self.gram.rows), widest))

    def update(self, batch: Batch, seen: Mapping[str, Seen]) -> None:
        """Take in one batch."""
        self.gram.update(batch, seen, _laid_out, lambda one: one.allowed.shape[1] * one.site.head_dim)
        for name, one in seen.items():
            sums = torch.einsum("bqhd,bq->hd", one.context, one.queries.float())
            self._sums[self._at[name], : sums.shape[1]] += sums.cpu().double().numpy()

    def result(self) -> dict[str, np.ndarray]:
        """`similarity/cosine` and its chance level, both `[head, head]`."""
        found = self.gram.cosines()
        rows = np.maximum(self.gram.rows, 1)
        means = self._sums / rows[:, None]
        norms = np.sqrt(self.gram.products.diagonal() / rows)
        with np.errstate(divide="ignore", invalid="ignore"):
            chance = means @ means.T / np.outer(norms, norms)
        return {
            "similarity/cosine": found,
            "similarity/cosine_chance": np.where(np.isnan(found), np.nan, np.clip(chance, -1, 1)),
        }


def _comparable(site: Site) -> tuple[Any, ...]:
    return *comparable(site), site.head_dim


def _laid_out(one: Seen, texts: slice, out: Tensor) -> None:
    contexts = one.context[texts]
    space = out.view(*out.shape[:2], contexts.shape[1], contexts.shape[3])
    torch.mul(contexts.transpose(1, 2), one.queries[texts][:, None, :, None], out=space)
