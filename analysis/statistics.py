"""Statistics of single heads: how widely, how far and how firmly they attend, and to which kinds of token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headwise.analysis.capture.seen import Reducer, Seen, positions_of
from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.corpus.grids import Grid
from headwise.analysis.inference.cells import CELLS, PARTS, add_by_cell, cells_of
from headwise.analysis.roles.punctuation import is_punctuation
from headwise.analysis.roles.sinks import is_first, is_separator
from headwise.analysis.sites import Site

#: Below any probability that float32 can hold beside others; keeps 0·log 0 at 0.
_TINY = 1e-30
#: Numbers worked on at a time: a piece of this size stays in the processor's cache.
PIECE = 1 << 18
#: A head is dormant below this share of its site's mean context norm.
DORMANT = 0.05

#: What is summed per row, and which rows it is a mean over (`all`, those with a choice, those with tokens).
_SUMS = {
    "entropy": "all",
    "normalised_entropy": "choice",
    "below_uniform": "choice",
    "confidence": "all",
    "context_norm": "all",
    "missing_mass": "all",
    "distance": "distance",
    "first": "tokens",
    "special": "tokens",
    "punctuation": "named",
}
#: The last ones are mass on keys, each a weighted sum of the map's entries.
_MASSES = 4
STATISTICS = tuple(_SUMS)
#: Those that a score may rest on: their sums are kept by part of the texts, too, so that these can be drawn again.
_DRAWN = ("confidence", "context_norm")


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
    return _entropy(_logs(maps, work).sum(-1), mass)


def _logs(maps: Tensor, work: Tensor) -> Tensor:
    """a·log a of every entry, in the work space."""
    torch.clamp_min(maps, _TINY, out=work)
    return work.log_().mul_(maps)


def _entropy(logs: Tensor, mass: Tensor) -> Tensor:
    """From Σ a·log a of rows and what they sum to."""
    safe = mass.clamp(min=_TINY)
    return (safe.log() - logs / safe).clamp(min=0.0)


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
        # Sites with the same rule share the tensor that states it, and all that follows from it.
        alike: dict[Any, list[str]] = {}
        for name, one in seen.items():
            if len(self._at[name]):
                alike.setdefault((id(one.allowed), one.site.kind, one.grid), []).append(name)
        for names in alike.values():
            group = [seen[name] for name in names]
            rule = _rule(group[0], batch.tokens)
            at = torch.from_numpy(np.concatenate([self._at[name] for name in names]))
            sums[:, at] = self._measured(group, rule).cpu().double()
            rows[:, at] = rule.rows.sum(1).cpu().double()[:, None]
        cells = cells_of(batch.texts)
        add_by_cell(self.sums, cells, sums)
        add_by_cell(self.rows, cells, rows)

    def _measured(self, group: Sequence[Seen], rule: _Rule) -> Float[Tensor, "batch head statistic"]:
        """Sums over each text's rows, of all heads of sites with one rule."""
        batch, _, length, _ = group[0].map.shape
        heads = sum(one.map.shape[1] for one in group)
        by_row = torch.empty(len(_SUMS) - _MASSES, batch, heads, length, device=group[0].map.device)
        entropy, normalised, below, firm, norm, missing = by_row
        mass = torch.cat([one.mass for one in group], dim=1)
        masses, start = [], 0
        for one in group:
            mine = slice(start, start + one.map.shape[1])
            for part in pieces(batch, one.map[0].numel()):
                maps = one.map[part]
                work = self._space(maps)
                torch.sum(_logs(maps, work), -1, out=entropy[part, mine])
                torch.amax(torch.mul(maps, rule.target[part][:, None, None], out=work), -1, out=firm[part, mine])
            masses.append(torch.bmm(one.map.flatten(2), rule.weights.transpose(1, 2)))
            norm[:, mine] = torch.linalg.vector_norm(one.context, dim=-1).transpose(1, 2)
            start = mine.stop
        entropy.copy_(_entropy(entropy, mass))
        torch.sub(1, mass, out=missing)
        torch.div(entropy, rule.even.clamp(min=_TINY)[:, None], out=normalised)
        torch.sub(rule.even[:, None], entropy, out=below)
        summed = torch.einsum("sbhq,bqs->bhs", by_row, rule.rows[:, :, : len(by_row)])
        return torch.cat([summed, torch.cat(masses, dim=1)], dim=2)

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
        """`statistics/<name>` of all; of those in `_DRAWN`, `parts/<name>` too: sums and rows by part of the texts."""
        found = {f"statistics/{name}": self.mean(name) for name in STATISTICS}
        for name in _DRAWN:
            parts = [table.reshape(-1, PARTS, table.shape[1]).sum(0).T for table in self.by_cell(name)]
            found[f"parts/{name}"] = np.stack(parts, axis=-1)
        found["statistics/rows"] = self.rows[:, :, 0].sum(0).numpy()
        found["statistics/dormant"] = self._dormant(found["statistics/context_norm"])
        return found

    def _dormant(self, norms: np.ndarray) -> np.ndarray:
        dormant = np.zeros(len(norms), dtype=bool)
        for at in self._at.values():
            if len(at) and np.isfinite(norms[at]).any():
                dormant[at] = norms[at] < DORMANT * np.nanmean(norms[at])
        return dormant


def pieces(count: int, size: int, most: int = PIECE) -> Iterator[slice]:
    """Slices over `count` texts of `size` numbers each, at most so many together: a piece stays in the processor's cache.

    >>> [part.stop - part.start for part in pieces(3, PIECE)]
    [1, 1, 1]
    """
    step = max(1, most // max(1, size))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


@dataclass(frozen=True, eq=False)
class _Rule:
    """What the statistics of all sites with one rule of who sees whom have in common.

    Attributes:
        weights: turn a map into mass, `[batch, statistic, query·key]`.
        target: keys that may be the largest, as weights 0 and 1.
        rows: which rows each statistic is a mean over, as weights 0 and 1.
        even: entropy of an indifferent head's rows, nats.
    """

    weights: Float[Tensor, "batch mass entry"]
    target: Float[Tensor, "batch key"]
    rows: Float[Tensor, "batch query statistic"]
    even: Float[Tensor, "batch query"]


def _rule(one: Seen, tokens: Mapping[str, Tokens]) -> _Rule:
    batch, length, width = one.allowed.shape
    device = one.allowed.device
    allowed = one.allowed.float()
    weights = torch.zeros(batch, _MASSES, length, width, device=device)
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
    return _Rule(weights.flatten(2), target, _which_rows(one, tokens), one.choices.clamp(min=1).log())


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
