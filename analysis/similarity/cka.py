"""Linear CKA of contexts: whether two heads hand on the same information, whatever basis they write it in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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

#: Rows kept at most; all of them count where there are no more.
ROWS = 2048
#: Parts of the texts that the standard error leaves out in turn.
PARTS = 10


class Cka(Reducer):
    """‖X_gᵀ X_h‖² / (‖X_gᵀ X_g‖ · ‖X_hᵀ X_h‖), X the centred contexts of a head (Kornblith et al. 2019).

    Invariant to rotation and scale of either head's space. Of many rows a random sample of constant size is
    kept, drawn by text content and seed, so that order and batches do not matter. Standard error by leaving
    out a tenth of the texts in turn (jackknife): `similarity_error/cka`. Chance: the mean over all pairings
    of one head's rows with the other's, tr K_g · tr K_h / ((n − 1) ‖K_g‖ ‖K_h‖), exact.

    Args:
        sites: the sites.
        rows: kept at most.
        seed: of the draw.

    >>> from headwise.analysis.corpus.texts import Text
    >>> site = Site("0", "a", "a.o", heads=2, kv_heads=2, head_dim=1, kept=(0, 1))
    >>> contexts = torch.tensor([[[[1.0], [-2.0]], [[3.0], [-6.0]], [[4.0], [-8.0]]]])
    >>> every = torch.ones(1, 3, 3, dtype=torch.bool)
    >>> cka = Cka({"0": site})
    >>> cka.update(Batch({}, [Text("a")], {}), {"0": Seen(site, None, contexts, every[:, :, 0], every)})
    >>> cka.result()["similarity/cka"].round(4).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """

    needs = frozenset({"contexts"})
    totals = ("_kept",)

    def __init__(self, sites: Mapping[str, Site], *, rows: int = ROWS, seed: int = 0) -> None:
        self.sites, self.most, self.seed = dict(sites), rows, seed
        self._at = positions_of(sites)
        self._groups: dict[Any, list[str]] = {}
        for name, site in sites.items():
            if site.kept:
                self._groups.setdefault(comparable(site), []).append(name)
        self._kept: dict[Any, _Sample] = {group: _Sample(rows) for group in self._groups}

    def update(self, batch: Batch, seen: Mapping[str, Seen]) -> None:
        """Take in one batch, or one tile of it."""
        cells = cells_of(batch.texts).numpy()
        for group, names in self._groups.items():
            if names[0] not in seen:
                continue
            first = seen[names[0]]
            text, row = (part.cpu().numpy() for part in torch.nonzero(first.queries, as_tuple=True))
            keys = np.concatenate(
                [row_keys(self.seed, t.id, row[text == i] + first.start) for i, t in enumerate(batch.texts)]
            )
            chosen = self._kept[group].wanted(keys)
            at = torch.from_numpy(text[chosen]), torch.from_numpy(row[chosen])
            values = torch.cat([seen[name].context[at].flatten(1).cpu() for name in names], dim=1)
            self._kept[group].add(keys[chosen], cells[text[chosen]], values)

    def finish(self) -> None:
        """Choose among the rows that are held."""
        for sample in self._kept.values():
            sample.done()

    def result(self) -> dict[str, np.ndarray]:
        """`similarity/cka`, its chance level and its standard error, all `[head, head]`."""
        heads = sum(site.heads for site in self.sites.values())
        alike, chance, error = (np.full((heads, heads), np.nan) for _ in range(3))
        for group, names in self._groups.items():
            sample = self._kept[group].done()
            if len(sample.keys) < 2:
                continue
            widths = [self.sites[name].head_dim for name in names for _ in self.sites[name].kept]
            at = np.concatenate([self._at[name] for name in names])
            part = np.ix_(at, at)
            alike[part], chance[part], error[part] = _measured(sample, widths)
        return {"similarity/cka": alike, "similarity/cka_chance": chance, "similarity_error/cka": error}


class _Sample:
    """The rows with the smallest keys, at most `most`, in the order of their keys."""

    totals = ("keys", "cells", "values")

    def __init__(self, most: int) -> None:
        self.most = most
        self.keys = np.zeros(0, np.uint64)
        self.cells = np.zeros(0, np.int64)
        self.values = torch.zeros(0, 0)
        self._parts: list[tuple[np.ndarray, np.ndarray, Tensor]] = []
        self._held = 0

    def wanted(self, keys: np.ndarray) -> np.ndarray:
        """Which of these rows could still be among the smallest."""
        if len(self.keys) < self.most:
            return np.arange(len(keys))
        return np.flatnonzero(keys < self.keys[-1])

    def add(self, keys: np.ndarray, cells: np.ndarray, values: Tensor) -> None:
        self._parts.append((keys, cells, values))
        self._held += len(keys)
        if self._held > self.most:
            self.done()

    def absorb(self, told: Mapping[str, Any]) -> None:
        """Take in another sample of other rows."""
        self.done()
        if len(told["keys"]):
            self.add(told["keys"], told["cells"], told["values"])
        self.done()

    def done(self) -> _Sample:
        parts = [(self.keys, self.cells, self.values), *self._parts] if len(self.keys) else self._parts
        if parts:
            keys = np.concatenate([part[0] for part in parts])
            order = np.argsort(keys, kind="stable")[: self.most]
            self.keys, self.cells = keys[order], np.concatenate([part[1] for part in parts])[order]
            self.values = torch.cat([part[2] for part in parts])[torch.from_numpy(order)]
        self._parts, self._held = [], 0
        return self


def _measured(sample: _Sample, widths: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """CKA, chance and standard error of all pairs of heads in a sample."""
    part = torch.from_numpy(sample.cells % PARTS)
    # Whole and without each part: the products of a part are taken off instead of made anew.
    whole = _moments(sample.values, widths)
    lefts = []
    parts = [i for i in range(PARTS) if bool((part == i).any()) and bool((part != i).sum() > 1)]
    for i in parts:
        squares = _moments(sample.values[part != i], widths)
        lefts.append(_cka(squares))
    alike = _cka(whole)
    count = len(lefts)
    error = np.full_like(alike, np.nan)
    if count > 1:
        stack = np.stack(lefts)
        error = np.sqrt((count - 1) / count * ((stack - stack.mean(0)) ** 2).sum(0))
    centred = sample.values - sample.values.mean(0)
    traces = np.array([float(block.double().square().sum()) for block in torch.split(centred, list(widths), dim=1)])
    own = np.sqrt(whole.diagonal())
    with np.errstate(divide="ignore", invalid="ignore"):
        chance = np.outer(traces / own, traces / own) / (len(sample.keys) - 1)
    return alike, np.where(np.isnan(alike), np.nan, np.clip(chance, 0, 1)), error


def _moments(values: Float[Tensor, "row width"], widths: Sequence[int]) -> Float[np.ndarray, "head head"]:
    """‖X_gᵀ X_h‖² of all pairs, a strip of heads at a time."""
    centred = values - values.mean(0)
    found = torch.zeros(len(widths), len(widths), dtype=torch.float64)
    owner = torch.repeat_interleave(torch.arange(len(widths)), torch.tensor(widths))
    start = 0
    for g, width in enumerate(widths):
        strip = centred[:, start : start + width].T @ centred[:, start:]
        found[g].index_add_(0, owner[start:], strip.double().square().sum(0))
        start += width
    upper = found.triu()
    return (upper + upper.triu(1).T).numpy()


def _cka(squares: np.ndarray) -> np.ndarray:
    own = np.sqrt(np.where(squares.diagonal() > 0, squares.diagonal(), np.nan))
    return np.asarray(np.clip(squares / np.outer(own, own), 0, 1))
