"""Grouped: moments of a few groups of texts, so that heads can be chosen again on half of them."""

from __future__ import annotations

import copy
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

    They are kept in float32: enough to choose again by, and half the memory of the sums that decide.

    Attributes:
        moments: of the contexts, by site, [group].
        slopes: sums of outer products of the loss gradient at the projection's output, by site, [group].
    """

    moments: dict[str, list[Moments]] = field(default_factory=dict)
    slopes: dict[str, list[Float[Tensor, "out out"]]] = field(default_factory=dict)

    @staticmethod
    def fits(shapes: Iterable[tuple[int, int]]) -> bool:
        """Whether the sums of sites with projections of these shapes, [out, columns], are small enough to be kept.

        >>> Grouped.fits([(576, 576)] * 30), Grouped.fits([(1024, 1024)] * 24)
        (True, False)
        """
        return sum(GROUPS * 4 * (out**2 + columns**2) for out, columns in shapes) <= MOST

    def add(self, name: str, group: int, seen: Moments) -> None:
        """Count moments of contexts in.

        >>> found = Grouped()
        >>> found.add("0", 1, Moments.zeros(3))
        >>> len(found.moments["0"])
        4
        """
        if name not in self.moments:
            weight, first, second = (torch.zeros_like(part).float() for part in (seen.weight, seen.first, seen.second))
            empty = Moments(weight, first, second)
            self.moments[name] = [copy.deepcopy(empty) for _ in range(GROUPS)]
        self.moments[name][group] += seen

    def add_slopes(self, name: str, group: int, products: Float[Tensor, "out out"]) -> None:
        """Count outer products in.

        >>> found = Grouped()
        >>> found.add_slopes("0", 1, torch.ones(2, 2))
        >>> float(sum(found.slopes["0"]).sum())
        4.0
        """
        if name not in self.slopes:
            self.slopes[name] = [torch.zeros_like(products).float() for _ in range(GROUPS)]
        self.slopes[name][group] += products
