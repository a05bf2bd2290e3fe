"""All pairs of heads of a whole model at once: one matrix product per piece of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headwise.analysis.capture.seen import Seen, positions_of
from headwise.analysis.corpus.batching import Batch
from headwise.analysis.corpus.texts import Text
from headwise.analysis.devices import exact
from headwise.analysis.inference.cells import cells_of
from headwise.analysis.sites import Site
from headwise.analysis.statistics import pieces

#: Numbers of one matrix product: more than a cache holds, so that few texts make many products.
PIECE = 1 << 20
#: Writes the rows of one site's heads for some texts: `fill(seen, texts, out)`, out `[text, head, width]`.
Fill = Callable[[Seen, slice, Tensor], None]


def comparable(site: Site) -> tuple[str, str]:
    """What two sites must share for their maps to be compared entry by entry.

    >>> comparable(Site("0", "a", "a.o", heads=1, kv_heads=1, head_dim=1))
    ('', 'self')
    """
    return site.stack, site.kind


class Gram:
    """Inner products of every head with every other, summed over the data in float64.

    Sites that are not comparable (another stack, cross-attention, another head width) are never multiplied.

    Args:
        sites: the sites.
        group: what sites must share to be compared.
        blocks: parts of the texts, by content, whose products are also kept apart, for resampling; 0 for none.
    """

    totals = ("products", "by_block", "rows")

    def __init__(self, sites: Mapping[str, Site], group: Callable[[Site], Any] = comparable, blocks: int = 0) -> None:
        self._at = positions_of(sites)
        heads = sum(site.heads for site in sites.values())
        self.products = np.zeros((heads, heads))
        self.by_block = np.zeros((blocks, heads, heads))
        self.rows = np.zeros(heads)
        self.compared = np.zeros((heads, heads), dtype=bool)
        self._groups: dict[Any, list[str]] = {}
        for name, site in sites.items():
            if site.kept:
                self._groups.setdefault(group(site), []).append(name)
        for names in self._groups.values():
            at = self._positions(names)
            self.compared[np.ix_(at, at)] = True
        self._buffer = torch.empty(0)

    def _positions(self, names: Sequence[str]) -> np.ndarray:
        return np.concatenate([self._at[name] for name in names])

    def update(self, batch: Batch, seen: Mapping[str, Seen], fill: Fill, width: Callable[[Seen], int]) -> None:
        """Add one batch's inner products.

        Args:
            batch: the batch.
            seen: its sites.
            fill: writes what is multiplied.
            width: how many numbers `fill` writes per text and head.
        """
        for names in self._groups.values():
            if names[0] not in seen:
                # A tile beyond the end of a shorter stream.
                continue
            at = self._positions(names)
            size = width(seen[names[0]])
            device = seen[names[0]].allowed.device
            total = torch.zeros(len(at), len(at), dtype=torch.float64, device=exact(device))
            for part in pieces(len(batch.texts), len(at) * size, PIECE):
                out = self._space(part.stop - part.start, len(at), size, device)
                start = 0
                for name in names:
                    count = len(self._at[name])
                    fill(seen[name], part, out[:, start : start + count])
                    start += count
                products = torch.bmm(out, out.mT)
                total += products.to(total.device).sum(0, dtype=torch.float64)
                self._apart(batch.texts[part], products, at)
            self.products[np.ix_(at, at)] += total.cpu().numpy()
            for name in names:
                self.rows[self._at[name]] += float(seen[name].queries.sum())

    def _apart(self, texts: Sequence[Text], products: Tensor, at: np.ndarray) -> None:
        blocks = len(self.by_block)
        if blocks:
            for cell, one in zip(cells_of(texts).tolist(), products.cpu().double().numpy(), strict=True):
                self.by_block[cell % blocks][np.ix_(at, at)] += one

    def _space(self, texts: int, heads: int, size: int, device: torch.device) -> Float[Tensor, "text head width"]:
        needed = texts * heads * size
        if self._buffer.numel() < needed or self._buffer.device != device:
            self._buffer = torch.empty(needed, device=device)
        return self._buffer[:needed].view(texts, heads, size)

    def parts(self) -> tuple[Float[np.ndarray, "block head head"], Callable[[np.ndarray], np.ndarray]]:
        """Products by part of the texts, and how likeness comes from their sum."""
        return self.by_block, cosines

    def cosines(self, least: float = 0.0) -> Float[np.ndarray, "head head"]:
        """Each product over the two heads' own norms; NaN for pairs that cannot be compared.

        Args:
            least: a head whose mean square per row is at most this has no direction: NaN.
        """
        found = cosines(self.products, least * np.maximum(self.rows, 1))
        found[~self.compared] = np.nan
        np.fill_diagonal(found, np.where(np.isfinite(found.diagonal()), 1.0, np.nan))
        return found


def cosines(products: Float[np.ndarray, "head head"], least: Any = 0.0) -> Float[np.ndarray, "head head"]:
    """Inner products over the norms on their diagonal; NaN where a square is at most `least`.

    >>> cosines(np.array([[4.0, 2.0], [2.0, 1.0]])).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    squares = products.diagonal().copy()
    norms = np.sqrt(np.where(squares > least, squares, np.nan))
    found = np.clip(products / np.outer(norms, norms), -1, 1)
    return np.asarray((found + found.T) / 2)
