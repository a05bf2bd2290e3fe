"""A fixed offset, found by search: which distance a head looks at, and how firmly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from headwise.analysis.batching import Batch
from headwise.analysis.cells import CELLS, add_by_cell, cells_of
from headwise.analysis.roles.assignment import Measured
from headwise.analysis.seen import Reducer, Seen, positions_of
from headwise.analysis.sites import Site

#: How far the search goes, in tokens.
FARTHEST = 16


class FixedOffset(Reducer):
    """Mass on every offset from −16 to 16, by cell of texts; the neighbours and the token itself left out.

    The best offset of a head is chosen on half of the cells and measured on the other half, so that choosing
    among many costs no false discovery. Chance: 1 over the number of allowed keys, in the rows that have a key
    there.

    Args:
        sites: the sites.
        farthest: how far the search goes.
    """

    needs = frozenset({"maps"})
    totals = ("mass", "chance", "rows")

    def __init__(self, sites: Mapping[str, Site], farthest: int = FARTHEST) -> None:
        self.sites = dict(sites)
        self.offsets = np.array([sign * o for o in range(2, farthest + 1) for sign in (-1, 1)])
        self._at = positions_of(sites)
        heads = sum(site.heads for site in sites.values())
        self.mass = torch.zeros(CELLS, heads, len(self.offsets), dtype=torch.float64)
        self.chance, self.rows = torch.zeros_like(self.mass), torch.zeros_like(self.mass)

    def update(self, batch: Batch, seen: Mapping[str, Seen]) -> None:
        """Take in one batch, or one tile of it."""
        found = torch.zeros(3, len(batch.texts), *self.mass.shape[1:], dtype=torch.float64)
        known: dict[int, tuple[Tensor, Tensor]] = {}
        for name, one in seen.items():
            at = torch.from_numpy(self._at[name])
            if one.site.kind != "self" or len(at) == 0:
                continue
            key = id(one.allowed)
            if key not in known:
                known[key] = self._open_rows(one)
            share, rows = known[key]
            for i, offset in enumerate(self.offsets.tolist()):
                band = one.map.diagonal(offset + one.start, dim1=2, dim2=3)
                usable = one.allowed.diagonal(offset + one.start, dim1=1, dim2=2)
                found[0, :, at, i] = (band * usable[:, None]).sum(-1).cpu().double()
            found[1][:, at], found[2][:, at] = share[:, None], rows[:, None]
        cells = cells_of(batch.texts)
        for total, values in zip((self.mass, self.chance, self.rows), found, strict=True):
            add_by_cell(total, cells, values)

    def _open_rows(self, one: Seen) -> tuple[Tensor, Tensor]:
        """Summed chance and number of rows with a key at each offset, `[batch, offset]` each."""
        shares, counts = [], []
        for offset in self.offsets.tolist():
            usable = one.allowed.diagonal(offset + one.start, dim1=1, dim2=2)
            even = one.uniform.diagonal(offset + one.start, dim1=1, dim2=2)
            shares.append(even.sum(-1))
            counts.append(usable.sum(-1))
        return torch.stack(shares, 1).cpu().double(), torch.stack(counts, 1).cpu().double()

    def measured(self) -> tuple[Measured, np.ndarray]:
        """Sums by cell at each head's best offset, and that offset; judged on cells that did not choose."""
        mass, chance, rows = (part.numpy() for part in (self.mass, self.chance, self.rows))
        filled = np.flatnonzero(rows.any((1, 2)))
        chosen_on, judged_on = filled[::2], filled[1::2]
        total = rows[chosen_on].sum(0)
        excess = np.where(total > 0, (mass - chance)[chosen_on].sum(0) / np.maximum(total, 1), -np.inf)
        # Rounded, so that a head without preference gets the nearest offset in any order of the texts.
        best = excess.round(5).argmax(-1)
        pick = np.arange(len(best)), best
        parts = [np.zeros((CELLS, len(best))) for _ in range(3)]
        for part, whole in zip(parts, (mass, chance, rows), strict=True):
            part[judged_on] = whole[judged_on][:, pick[0], pick[1]]
        found = Measured(parts[0], parts[1], parts[0] - parts[1], parts[2])
        return found, np.where(np.isfinite(excess.max(-1)), self.offsets[best], 0).astype(np.float64)

    def result(self) -> dict[str, np.ndarray]:
        """`roles/fixed-offset/offset`, tokens ahead of the query, `[head]`."""
        return {"roles/fixed-offset/offset": self.measured()[1]}
