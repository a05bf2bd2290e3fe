"""Grouped: moments of a few groups of texts, so that heads can be chosen again on half of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from headwise.prune.importance.moments import Moments
from headwise.prune.importance.resampled import GROUPS, MOST


@dataclass
class Grouped:
    """Sums that are too large to be kept by part of the texts: a group is every fourth part.

    Attributes:
        moments: of the contexts, by site, [group].
        slopes: sums of outer products of the loss gradient at the projection's output, by site, [group].
    """

    moments: dict[str, list[Moments]] = field(default_factory=dict)
    slopes: dict[str, list[Float[Tensor, "out out"]]] = field(default_factory=dict)

    @staticmethod
    def fits(shapes: Iterable[tuple[int, int]]) -> bool:
        """Whether the sums of sites with projections of these shapes, [out, columns], are small enough to be kept.

        >>> Grouped.fits([(768, 768)] * 12), Grouped.fits([(4096, 4096)] * 32)
        (True, False)
        """
        return sum(GROUPS * 8 * (out**2 + columns**2) for out, columns in shapes) <= MOST

    def add(self, name: str, group: int, seen: Moments) -> None:
        """Count moments of contexts in.

        >>> found = Grouped()
        >>> found.add("0", 1, Moments.zeros(3))
        >>> len(found.moments["0"])
        4
        """
        if name not in self.moments:
            like = seen.first
            self.moments[name] = [Moments.zeros(len(like), like.device) for _ in range(GROUPS)]
        self.moments[name][group] += seen

    def add_slopes(self, name: str, group: int, products: Float[Tensor, "out out"]) -> None:
        """Count outer products in.

        >>> found = Grouped()
        >>> found.add_slopes("0", 1, torch.ones(2, 2))
        >>> float(sum(found.slopes["0"]).sum())
        4.0
        """
        if name not in self.slopes:
            self.slopes[name] = [torch.zeros_like(products) for _ in range(GROUPS)]
        self.slopes[name][group] += products
