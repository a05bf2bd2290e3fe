"""A fixed offset, found by search: which distance a head looks at, and how firmly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from headwise.analysis.capture.seen import Reducer, Seen, positions_of
from headwise.analysis.corpus.batching import Batch
from headwise.analysis.inference.cells import CELLS, add_by_cell, cells_of
from headwise.analysis.roles.assignment import Measured
from headwise.analysis.sites import Site

#: How far the search goes, in tokens; in an image, in patches up, down, left and right.
FARTHEST, FARTHEST_IN_IMAGES = 16, 4
#: Places that have a role of their own: the token itself and its neighbours.
_NEAR = {(0, 0), (0, -1), (0, 1), (-1, 0), (1, 0)}


class FixedOffset(Reducer):
    """Mass on every offset from −16 to 16, by cell of texts; the neighbours and the token itself left out.

    In an image an offset has two parts: patches down and patches to the right, from −4 to 4 each.

    The best offset of a head is chosen on half of the cells and measured on the other half, so that choosing
    among many costs no false discovery. Chance: 1 over the number of allowed keys, in the rows that have a key
    there.

    Args:
        sites: the sites.
        farthest: how far the search goes.
    """

    needs = frozenset({"maps"})
    totals = ("sums",)

    def __init__(self, sites: Mapping[str, Site], farthest: int = FARTHEST) -> None:
        self.sites = dict(sites)
        self._at = positions_of(sites)
        self._heads = sum(site.heads for site in sites.values())
        span = range(-FARTHEST_IN_IMAGES, FARTHEST_IN_IMAGES + 1)
        ahead = [sign * o for o in range(2, farthest + 1) for sign in (-1, 1)]
        square = [(down, right) for down in span for right in span if (down, right) not in _NEAR]
        #: By kind of place, the offsets (down, right) that are tried; a text has no lines to go down.
        self.offsets = {
            "text": np.array([(0, offset) for offset in ahead]).reshape(-1, 2),
            # Near ones first, so that a head without preference gets a near one.
            "image": np.array(sorted(square, key=lambda place: (max(map(abs, place)), place))),
        }
        #: Mass, chance and rows, `[3, cell, head, offset]`, by kind of place that was seen.
        self.sums: dict[str, Tensor] = {}

    def update(self, batch: Batch, seen: Mapping[str, Seen]) -> None:
        """Take in one batch, or one tile of it."""
        found: dict[str, Tensor] = {}
        known: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}
        for name, one in seen.items():
            at = torch.from_numpy(self._at[name])
            if one.site.kind != "self" or not one.ordered or len(at) == 0:
                continue
            kind = "text" if one.grid is None else "image"
            if kind not in found:
                shape = 3, len(batch.texts), self._heads, len(self.offsets[kind])
                found[kind] = torch.zeros(shape, dtype=torch.float64)
            key = id(one.allowed), kind
            if key not in known:
                known[key] = self._open_rows(one, kind)
            share, rows = known[key]
            for i, (band, usable) in enumerate(self._bands(one, one.map, kind)):
                found[kind][0, :, at, i] = (band * usable[:, None]).sum(-1).cpu().double()
            found[kind][1][:, at], found[kind][2][:, at] = share[:, None], rows[:, None]
        cells = cells_of(batch.texts)
        for kind, parts in found.items():
            if kind not in self.sums:
                shape = 3, CELLS, self._heads, len(self.offsets[kind])
                self.sums[kind] = torch.zeros(shape, dtype=torch.float64)
            for total, values in zip(self.sums[kind], parts, strict=True):
                add_by_cell(total, cells, values)

    def _bands(self, one: Seen, values: Tensor, kind: str) -> list[tuple[Tensor, Tensor]]:
        """For each offset the entries of the maps at it, and which of them are of allowed keys."""
        found = []
        for down, right in self.offsets[kind].tolist():
            step = right if one.grid is None else down * one.grid.columns + right
            usable = one.allowed.diagonal(step + one.start, dim1=1, dim2=2)
            if one.grid is not None:
                # From the end of a line one step is to the beginning of the next, which is no neighbour.
                usable = usable & self._inside(one, step, right, usable.shape[-1])
            found.append((values.diagonal(step + one.start, dim1=-2, dim2=-1), usable))
        return found

    @staticmethod
    def _inside(one: Seen, step: int, right: int, count: int) -> Tensor:
        """Which entries of a diagonal lead from a patch to a patch in the column asked for."""
        if one.grid is None:
            raise ValueError("only images have lines")
        first = max(0, -(step + one.start)) + one.start
        query = torch.arange(first, first + count, device=one.allowed.device)
        column = (query - one.grid.before) % one.grid.columns + right
        patch = (query >= one.grid.before) & (query + step >= one.grid.before)
        return patch & (column >= 0) & (column < one.grid.columns)

    def _open_rows(self, one: Seen, kind: str) -> tuple[Tensor, Tensor]:
        """Summed chance and number of rows with a key at each offset, `[batch, offset]` each."""
        shares, counts = [], []
        for even, usable in self._bands(one, one.uniform, kind):
            shares.append((even * usable).sum(-1))
            counts.append(usable.sum(-1))
        return torch.stack(shares, 1).cpu().double(), torch.stack(counts, 1).cpu().double()

    def measured(self) -> tuple[Measured, dict[str, np.ndarray]]:
        """Sums by cell at each head's best offset, and that offset; judged on cells that did not choose.

        The offset is `offset`, tokens ahead of the query, or `down` and `right`, patches; NaN where there is none.
        """
        parts = np.zeros((3, CELLS, self._heads))
        offsets = {"offset": np.full(self._heads, np.nan)}
        for kind, sums in self.sums.items():
            mass, chance, rows = sums.numpy()
            filled = np.flatnonzero(rows.any((1, 2)))
            chosen_on, judged_on = filled[::2], filled[1::2]
            total = rows[chosen_on].sum(0)
            excess = np.where(total > 0, (mass - chance)[chosen_on].sum(0) / np.maximum(total, 1), -np.inf)
            # Rounded, so that a head without preference gets the nearest offset in any order of the texts.
            best = excess.round(5).argmax(-1)
            there = np.isfinite(excess.max(-1))
            for part, whole in zip(parts, (mass, chance, rows), strict=True):
                picked = whole[judged_on][:, np.arange(self._heads), best]
                part[judged_on] += np.where(there, picked, 0.0)
            down, right = np.where(there[:, None], self.offsets[kind][best].astype(np.float64), np.nan).T
            offsets |= {"offset": right} if kind == "text" else {"down": down, "right": right}
        return Measured(parts[0], parts[1], parts[0] - parts[1], parts[2]), offsets

    def result(self) -> dict[str, np.ndarray]:
        """`roles/fixed-offset/offset`, in images `down` and `right`, `[head]`."""
        return {f"roles/fixed-offset/{name}": values for name, values in self.measured()[1].items()}
