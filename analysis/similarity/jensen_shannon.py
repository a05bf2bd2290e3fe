"""Jensen-Shannon similarity of maps: exact on rows drawn from every text, with the error of the draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headwise.analysis.capture.seen import Reducer, Seen, positions_of
from headwise.analysis.corpus.batching import Batch
from headwise.analysis.inference.cells import cells_of
from headwise.analysis.similarity.gram import comparable
from headwise.analysis.similarity.rows import row_keys
from headwise.analysis.sites import Site

#: Rows drawn from every text at least, and pairs of heads in the rows of a text at most: all rows of texts where
#: heads are few, the least number where they are many.
ROWS, PAIRS = 4, 1 << 16
#: Numbers in one block of mixtures.
_BLOCK = 1 << 22


class JensenShannon(Reducer):
    """1 − JS(a_g, a_h) / ln 2, averaged over rows: 1 for equal maps, 0 for maps without a common key.

    JS = H(m) − (H(a_g) + H(a_h)) / 2, m = (a_g + a_h) / 2, H the entropy in nats (Lin 1991), each row scaled to
    sum to 1. A logarithm per pair, row and key makes all rows dear where there are many heads, so rows of every
    text are drawn then, by its content and the seed, and weighted by how many they stand for;
    `similarity_error/jensen_shannon` is the standard error of that draw (0 where every row was taken). Chance: the
    same with each head's allowed keys shuffled within the row, drawn once per row.

    Args:
        sites: the sites.
        rows: drawn from every text, at least 2; None for all; `auto` for 65,536 over the number of pairs of heads, but
            at least 4.
        seed: of the draw and the shuffling.
        blocks: parts of the texts, by content, whose sums are also kept apart, for resampling; 0 for none.

    >>> from headwise.analysis.corpus.texts import Text
    >>> site = Site("0", "a", "a.o", heads=2, kv_heads=2, head_dim=1, kept=(0, 1))
    >>> maps = torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]]]])
    >>> every = torch.ones(1, 1, 2, dtype=torch.bool)
    >>> measure = JensenShannon({"0": site})
    >>> measure.update(Batch({}, [Text("a")], {}), {"0": Seen(site, maps, None, every[:, :, 0], every)})
    >>> measure.result()["similarity/jensen_shannon"].round(4).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    needs = frozenset({"maps"})
    totals = ("sums", "variance", "chance", "weight", "by_block")

    def __init__(
        self,
        sites: Mapping[str, Site],
        *,
        rows: int | Literal["auto"] | None = "auto",
        seed: int = 0,
        blocks: int = 0,
    ) -> None:
        self.sites, self.seed = dict(sites), seed
        self._at = positions_of(sites)
        heads = sum(site.heads for site in sites.values())
        self.rows = max(ROWS, PAIRS // max(1, heads * heads)) if rows == "auto" else rows
        #: `[block, 2, head, head]`: divergence and weight.
        self.by_block = np.zeros((blocks, 2, heads, heads))
        self.sums, self.variance, self.chance = (np.zeros((heads, heads)) for _ in range(3))
        self.weight = np.zeros((heads, heads))
        self._groups: dict[tuple[str, str], list[str]] = {}
        for name, site in sites.items():
            if site.kept:
                self._groups.setdefault(comparable(site), []).append(name)
        self._batch: Batch | None = None
        self._cells: list[int] = []
        self._open: dict[tuple[str, int], list[tuple[int, np.ndarray]]] = {}
        self._count: dict[tuple[str, int], int] = {}

    def update(self, batch: Batch, seen: Mapping[str, Seen]) -> None:
        """Take in one batch, or one tile of it."""
        if batch is not self._batch:
            self._close()
            self._batch, self._cells = batch, cells_of(batch.texts).tolist()
        for names in self._groups.values():
            if names[0] in seen:
                self._take(batch, [seen[name] for name in names])

    def _take(self, batch: Batch, group: Sequence[Seen]) -> None:
        """Measure the rows whose keys are the smallest of their text so far."""
        first = group[0]
        for i, text in enumerate(batch.texts):
            places = torch.nonzero(first.queries[i]).flatten().cpu().numpy()
            key = (first.site.name, i)
            self._count[key] = self._count.get(key, 0) + len(places)
            drawn = self._open.setdefault(key, [])
            keys = row_keys(self.seed, text.id, places + first.start)
            most = len(places) + len(drawn) if self.rows is None else self.rows
            for k in np.argsort(keys)[:most]:
                if len(drawn) < most or keys[k] < drawn[-1][0]:
                    drawn.append((int(keys[k]), self._row(group, i, int(places[k]), int(keys[k]))))
                    drawn.sort(key=itemgetter(0))
                    del drawn[most:]

    def _row(self, group: Sequence[Seen], i: int, at: int, key: int) -> np.ndarray:
        """Divergence of all pairs in one row, and of all pairs with one side shuffled: `[2, head, head]`."""
        allowed = group[0].allowed[i, at]
        maps = torch.cat([one.map[i, :, at] for one in group])[:, allowed]
        maps = maps / maps.sum(-1, keepdim=True)
        generator = np.random.default_rng(key)
        order = np.argsort(generator.random(tuple(maps.shape)), axis=1)
        shuffled = maps.gather(1, torch.from_numpy(order).to(maps.device))
        return np.stack([divergences(maps, maps).cpu().numpy(), divergences(maps, shuffled).cpu().numpy()])

    def _close(self) -> None:
        """Add the finished batch's texts, each weighted by its rows."""
        members = {names[0]: np.concatenate([self._at[n] for n in names]) for names in self._groups.values()}
        for (name, i), rows in self._open.items():
            if not rows:
                continue
            drawn, count = np.stack([row for _, row in rows]).astype(np.float64), self._count[name, i]
            at = np.ix_(members[name], members[name])
            self.sums[at] += count * drawn[:, 0].mean(0)
            self.chance[at] += count * drawn[:, 1].mean(0)
            self.weight[at] += count
            if len(self.by_block):
                block = self.by_block[self._cells[i] % len(self.by_block)]
                block[:, *at] += np.stack([count * drawn[:, 0].mean(0), np.full(drawn.shape[2:], float(count))])
            if 1 < len(rows) < count:
                spread = drawn[:, 0].var(0, ddof=1) / len(rows)
                self.variance[at] += count**2 * (1 - len(rows) / count) * spread
        self._open.clear()
        self._count.clear()
        self._batch = None

    def parts(self) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
        """Sums by part of the texts, and how likeness comes from their sum."""
        self._close()
        return self.by_block, _alike

    def finish(self) -> None:
        """Take in what is open of the last batch."""
        self._close()

    def result(self) -> dict[str, np.ndarray]:
        """`similarity/jensen_shannon`, its chance level and its standard error, all `[head, head]`."""
        self._close()
        weight = np.where(self.weight > 0, self.weight, np.nan)
        alike = _alike(np.stack([self.sums, self.weight]))
        chance = 1 - (self.chance + self.chance.T) / 2 / weight / math.log(2)
        np.fill_diagonal(alike, np.where(np.isnan(alike.diagonal()), np.nan, 1.0))
        return {
            "similarity/jensen_shannon": np.clip((alike + alike.T) / 2, 0, 1),
            "similarity/jensen_shannon_chance": np.clip(chance, 0, 1),
            "similarity_error/jensen_shannon": np.sqrt(self.variance) / weight / math.log(2),
        }


def _alike(sums: Float[np.ndarray, "2 head head"]) -> Float[np.ndarray, "head head"]:
    """Likeness from summed divergence and weight; NaN where there is none."""
    return np.asarray(1 - sums[0] / np.where(sums[1] > 0, sums[1], np.nan) / math.log(2))


def divergences(p: Float[Tensor, "g key"], q: Float[Tensor, "h key"]) -> Float[Tensor, "g h"]:
    """Jensen-Shannon divergence of every row of `p` from every row of `q`, in nats.

    >>> round(float(divergences(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]))), 4)
    0.6931
    """
    mine, theirs = (-torch.xlogy(rows, rows).sum(-1) for rows in (p, q))
    found = torch.empty(len(p), len(q), device=p.device)
    step = max(1, _BLOCK // max(1, q.numel()))
    for start in range(0, len(p), step):
        part = slice(start, start + step)
        mixed = (p[part, None] + q[None]) / 2
        found[part] = -torch.xlogy(mixed, mixed).sum(-1) - (mine[part, None] + theirs[None]) / 2
    return found.clamp(0, math.log(2))
