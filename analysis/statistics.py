"""Statistics of single heads: how widely, how far and how firmly they attend, and to which kinds of token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headwise.analysis.batching import Batch, Tokens
from headwise.analysis.cells import CELLS, PARTS, add_by_cell, cells_of
from headwise.analysis.grids import Grid
from headwise.analysis.roles.punctuation import is_punctuation
from headwise.analysis.roles.sinks import is_first, is_separator
from headwise.analysis.seen import Reducer, Seen, positions_of
from headwise.analysis.sites import Site

#: Below any probability that float32 can hold beside others; keeps 0·log 0 at 0.
_TINY = 1e-30
#: Numbers worked on at a time: a piece of this size stays in the processor's cache.
PIECE = 1 << 19
#: A head is dormant below this share of its site's mean context norm.
DORMANT = 0.05

#: What is summed per row, and which rows it is a mean over (`all`, those with a choice, those with tokens).
_SUMS = {
    "entropy": "all",
    "normalised_entropy": "choice",
    "below_uniform": "choice",
    "distance": "distance",
    "confidence": "all",
    "first": "tokens",
    "special": "tokens",
    "punctuation": "named",
    "context_norm": "all",
    "missing_mass": "all",
}
STATISTICS = tuple(_SUMS)


def row_entropy(
    maps: Float[Tensor, "batch head query key"], mass: Float[Tensor, "batch head query"], work: Tensor
) -> Float[Tensor, "batch head query"]:
    """Entropy of each row in nats, of the row scaled to sum to 1; 0·log 0 counts as 0.

    H(a/m) = log m − Σ a·log a / m, m the row's mass (below 1 where a sink takes some).

    Args:
        maps: attention probabilities.
        mass: what each row sums to.
        work: space of the size of the maps, overwritten.

    >>> maps = torch.tensor([[[[0.5, 0.5, 0.0]]]])
    >>> round(row_entropy(maps, maps.sum(-1), torch.empty_like(maps)).item(), 4)
    0.6931
    """
    torch.clamp_min(maps, _TINY, out=work)
    work.log_().mul_(maps)
    safe = mass.clamp(min=_TINY)
    return (safe.log() - work.sum(-1) / safe).clamp(min=0.0)


class Statistics(Reducer):
    """Means over all rows of all texts, per head, kept as sums per cell of texts.

    | statistic | mean over rows of |
    |---|---|
    | `entropy` | −Σ a·log a, nats |
    | `normalised_entropy` | entropy / log(allowed keys), 1 = indifferent; rows with one key are left out |
    | `below_uniform` | log(allowed keys) − entropy, nats |
    | `distance` | Σ a·|query − key|, tokens, or patches of an image; self-attention only |
    | `confidence` | the largest weight, separators excluded as targets (Voita et al. 2019) |
    | `first`, `special`, `punctuation` | mass on the first token, other special tokens, punctuation |
    | `context_norm` | length of the head's context |
    | `missing_mass` | 1 − Σ a, what an attention sink takes |
    | `rows` | (how many rows there were) |
    | `dormant` | (1 where the context norm is under 5 % of the site's mean) |
    """

    needs = frozenset({"maps", "contexts"})
    totals = ("sums", "rows")

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self.sites = dict(sites)
        self._at = positions_of(sites)
        heads = sum(site.heads for site in sites.values())
        self.sums = torch.zeros(CELLS, heads, len(_SUMS), dtype=torch.float64)
        self.rows = torch.zeros(CELLS, heads, len(_SUMS), dtype=torch.float64)
        self._work = torch.empty(0)

    def update(self, batch: Batch, seen: Mapping[str, Seen]) -> None:
        """Take in one batch."""
        sums = torch.zeros(len(batch.texts), *self.sums.shape[1:], dtype=torch.float64)
        rows = torch.zeros_like(sums)
        targets: dict[Any, tuple[Tensor, Tensor]] = {}
        for name, one in seen.items():
            if len(self._at[name]) == 0:
                continue
            key = id(one.allowed), one.site.kind, one.grid
            if key not in targets:
                targets[key] = _targets(one, batch.tokens)
            at = torch.from_numpy(self._at[name])
            found, counted = self._measured(one, *targets[key], _which_rows(one, batch.tokens))
            sums[:, at], rows[:, at] = found.cpu().double(), counted.cpu().double()
        cells = cells_of(batch.texts)
        add_by_cell(self.sums, cells, sums)
        add_by_cell(self.rows, cells, rows)

    def _measured(self, one: Seen, weights: Tensor, target: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over each text's rows `[batch, head, statistic]`, and how many rows went into each."""
        batch, heads, length, width = one.map.shape
        found = torch.zeros(batch, heads, len(_SUMS), device=one.map.device)
        counted = dict(zip(_SUMS, range(len(_SUMS)), strict=True))
        mass = one.mass
        choices = one.choices.clamp(min=1).log()
        for part in pieces(batch, heads * length * width):
            maps, row = one.map[part], rows[part]
            work = self._space(maps)
            entropy = row_entropy(maps, mass[part], work)
            even = choices[part][:, None]
            firm = torch.mul(maps, target[part][:, None, None], out=work).amax(-1)
            per_row = {
                "entropy": entropy,
                "normalised_entropy": entropy / even.clamp(min=_TINY),
                "below_uniform": even - entropy,
                "confidence": firm,
                "context_norm": torch.linalg.vector_norm(one.context[part], dim=-1).transpose(1, 2),
                "missing_mass": 1 - mass[part],
            }
            at = [counted[name] for name in per_row]
            # One product for all of them: [text, statistic, head, query] by [text, statistic, query].
            summed = torch.stack(list(per_row.values()), dim=1) @ row[:, :, at].transpose(1, 2)[..., None]
            found[part, :, at] = summed[..., 0].transpose(1, 2)
            flat = maps.reshape(len(maps), heads, length * width)
            masses = torch.bmm(flat, weights[part].transpose(1, 2))
            for i, name in enumerate(("distance", "first", "special", "punctuation")):
                found[part, :, counted[name]] = masses[:, :, i]
        return found, rows.sum(1)[:, None].expand_as(found)

    def _space(self, maps: Tensor) -> Tensor:
        if self._work.numel() < maps.numel() or self._work.device != maps.device:
            self._work = torch.empty(maps.numel(), device=maps.device)
        return self._work[: maps.numel()].view(maps.shape)

    def mean(self, name: str) -> np.ndarray:
        """One statistic of every head, NaN where it does not apply."""
        i = STATISTICS.index(name)
        rows = self.rows[:, :, i].sum(0)
        return (self.sums[:, :, i].sum(0) / rows.where(rows > 0, torch.nan)).numpy()

    def by_cell(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Sums and row counts of one statistic, `[cell, head]` each."""
        i = STATISTICS.index(name)
        return self.sums[:, :, i].numpy(), self.rows[:, :, i].numpy()

    def result(self) -> dict[str, np.ndarray]:
        """`statistics/<name>` for every statistic, and `parts/confidence`, sums and rows by part of the texts."""
        found = {f"statistics/{name}": self.mean(name) for name in STATISTICS}
        parts = [table.reshape(-1, PARTS, table.shape[1]).sum(0).T for table in self.by_cell("confidence")]
        found["parts/confidence"] = np.stack(parts, axis=-1)
        found["statistics/rows"] = self.rows[:, :, 0].sum(0).numpy()
        found["statistics/dormant"] = self._dormant(found["statistics/context_norm"])
        return found

    def _dormant(self, norms: np.ndarray) -> np.ndarray:
        dormant = np.zeros(len(norms), dtype=bool)
        for at in self._at.values():
            if len(at) and np.isfinite(norms[at]).any():
                dormant[at] = norms[at] < DORMANT * np.nanmean(norms[at])
        return dormant


def pieces(count: int, size: int) -> Iterator[slice]:
    """Slices over `count` texts of `size` numbers each, so that a slice stays in the processor's cache.

    >>> [part.stop - part.start for part in pieces(3, PIECE)]
    [1, 1, 1]
    """
    step = max(1, PIECE // max(1, size))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def _targets(one: Seen, tokens: Mapping[str, Tokens]) -> tuple[Tensor, Tensor]:
    """Weights `[batch, statistic, query·key]` that turn a map into sums, and keys that may be the largest."""
    batch, length, width = one.allowed.shape
    device = one.allowed.device
    allowed = one.allowed.float()
    weights = torch.zeros(batch, 4, length, width, device=device)
    target = torch.ones(batch, width, device=device)
    if one.site.kind == "self":
        rows = torch.arange(one.start, one.start + length, device=device)
        ahead = torch.arange(width, device=device)[None] - rows[:, None]
        weights[:, 0] = allowed * (ahead.abs() if one.grid is None else _apart(one.grid, rows))
    if one.key_stream is not None:
        keys = tokens[one.key_stream]
        separator = is_separator(keys).to(device)
        weights[:, 1] = allowed * is_first(keys).to(device)[:, None]
        weights[:, 2] = allowed * separator[:, None]
        weights[:, 3] = allowed * is_punctuation(keys).to(device)[:, None]
        target = (~separator).float()
    return weights.flatten(2), target


def _which_rows(one: Seen, tokens: Mapping[str, Tokens]) -> Float[Tensor, "batch query statistic"]:
    """Which rows each statistic is a mean over, as weights 0 and 1."""
    every = one.queries.float()
    words = every if one.key_stream is not None else torch.zeros_like(every)
    legible = one.key_stream is not None and tokens[one.key_stream].tokenizer is not None
    named = words if legible else torch.zeros_like(every)
    kinds = {
        "all": every,
        "choice": every * (one.choices > 1),
        "distance": _placed(one, every),
        "tokens": words,
        "named": named,
    }
    return torch.stack([kinds[kind] for kind in _SUMS.values()], dim=-1)


def _placed(one: Seen, every: Tensor) -> Tensor:
    """Rows that stand somewhere: those of self-attention, in an image those of patches."""
    if one.site.kind != "self" or not one.ordered:
        return torch.zeros_like(every)
    if one.grid is None:
        return every
    rows = torch.arange(one.start, one.start + every.shape[1], device=every.device)
    return every * (rows >= one.grid.before)


def _apart(grid: Grid, rows: Tensor) -> Float[Tensor, "query key"]:
    """Euclidean distance of patches (Dosovitskiy et al. 2021); 0 to what stands nowhere."""
    places = torch.stack(grid.places).to(rows.device).double()
    far = torch.cdist(places[:, rows].T, places.T).float()
    there = torch.arange(places.shape[1], device=rows.device) >= grid.before
    return far * there * there[rows, None]
