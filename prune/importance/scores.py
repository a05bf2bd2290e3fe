"""Scores: a number per head, high = keep, and what removals cost where that is more than a number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from headwise.analysis.sites import Site
from headwise.prune.importance.resampled import Resampled
from headwise.prune.selection.costs import AdditiveCosts, Costs
from headwise.prune.selection.greedy import greedy
from headwise.prune.selection.keep import Keep
from headwise.prune.selection.reach import rooms_of


class Scores(Mapping[str, np.ndarray]):
    """The scores of a model as a mapping site name -> float64 [head]; NaN where an earlier cut took the head.

    Attributes:
        kind: name of the score.
        values_by_site: the mapping itself.
        costs: what removals cost; scores simply add up unless the score knows better.
        notes: what there is to say about single heads: site -> head -> words for the reason.
        resampled: how the values come out on texts drawn again.

    >>> Scores("random", {"0": np.array([1.0, 2.0])})["0"]
    array([1., 2.])
    """

    def __init__(
        self,
        kind: str,
        values: dict[str, np.ndarray],
        costs: Costs | None = None,
        notes: dict[str, dict[int, str]] | None = None,
        resampled: Resampled | None = None,
    ) -> None:
        self.kind = kind
        self.values_by_site = values
        self.costs = costs if costs is not None else AdditiveCosts(values)
        self.notes = notes or {}
        self.resampled = resampled

    def __getitem__(self, site: str) -> np.ndarray:
        return self.values_by_site[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_site)

    def __len__(self) -> int:
        return len(self.values_by_site)


def spread(site: Site, kept: np.ndarray) -> np.ndarray:
    """Numbers of the heads that exist, on the axis of the dense site's heads; NaN for the others.

    >>> spread(Site("0", "attn", "attn.o", 3, 3, 8, kept=(0, 2)), np.array([5.0, 6.0]))
    array([ 5., nan,  6.])
    """
    values = np.full(site.heads, np.nan)
    values[list(site.kept)] = kept
    return values


def removal_ranks(sites: Mapping[str, Site], costs: Costs) -> dict[str, np.ndarray]:
    """When each head would go if all went, greedily and without rules: 0 for the first, [head] per site.

    Heads that share keys and values go together and share their rank.

    >>> site = Site("0", "attn", "attn.o", 3, 3, 8, kept=(0, 1, 2))
    >>> removal_ranks({"0": site}, AdditiveCosts({"0": np.array([3.0, 1.0, 2.0])}))
    {'0': array([2., 0., 1.])}
    """
    # A site that cannot be cut has ranks all the same: they are shown, not used.
    free = {name: replace(site, refusal="") for name, site in sites.items()}
    rooms = rooms_of(free, Keep(minimum_per_site=0))
    ranks = {name: np.full(site.heads, np.nan) for name, site in sites.items()}
    place = 0
    for step in greedy(rooms, costs, sum(site.heads for site in sites.values())):
        for site in rooms[step.block].block.sites:
            ranks[site.name][list(step.heads)] = place
        place += step.size
    return ranks
