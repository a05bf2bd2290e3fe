"""Path: one greedy walk; the removals of every smaller budget are its beginnings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headwise.analysis.sites import Site
from headwise.prune.selection.blocks import Unit
from headwise.prune.selection.budget import Budget
from headwise.prune.selection.costs import Costs
from headwise.prune.selection.greedy import Scope, Step, greedy
from headwise.prune.selection.keep import Keep
from headwise.prune.selection.reach import quota_of, reachable, rooms_of
from headwise.prune.selection.select import Selection, told


@dataclass(frozen=True)
class Path:
    """The removals up to the largest budget, in their order.

    Attributes:
        sites: sites of the model.
        costs: what removals cost.
        steps: the removals.
        scope: how blocks share the budget.
        keep: what stays.
        unit: what goes in one piece.
        evidence: for keep-rules about roles.
    """

    sites: Mapping[str, Site]
    costs: Costs
    steps: tuple[Step, ...]
    scope: Scope
    keep: Keep
    unit: Unit
    evidence: Any = None

    def beginning(self, count: int, score: str = "score", notes: Mapping[str, Mapping[int, str]] | None = None) -> Any:
        """The selection that removes the first so many heads (with whole pieces, no more), with its reasons.

        For scope `uniform` the first of every block, as many of each.

        Args:
            count: heads to be gone in the end, those of earlier cuts included.
            score: name of the score, for the reasons.
            notes: what the score has to say about single heads.
        """
        rooms = rooms_of(self.sites, self.keep, self.unit, self.evidence)
        left = count - sum(room.block.gone for room in rooms.values())
        quota = dict.fromkeys(rooms, math.inf)
        if self.scope == "uniform":
            quota = {name: float(most) for name, most in quota_of(rooms, count, self.scope).items()}
        taken: list[Step] = []
        for step in self.steps:
            if step.size > left:
                break
            if step.size > quota[step.block]:
                quota[step.block] = 0
                continue
            left, quota[step.block] = left - step.size, quota[step.block] - step.size
            rooms[step.block].take(step.heads)
            taken.append(step)
        protected = self.keep.protected(self.sites, self.evidence)
        found: Selection = told(self.sites, rooms, self.costs, taken, protected, score, notes or {})
        return found


def walk(
    sites: Mapping[str, Site],
    costs: Costs,
    budget: Budget,
    *,
    scope: Scope = "model",
    keep: Keep | None = None,
    unit: Unit = "group",
    evidence: Any = None,
) -> Path:
    """The greedy path up to a budget that is counted in heads.

    Raises:
        BadInput: the budget cannot be met, or a keep-rule does not fit.

    >>> import numpy as np
    >>> from headwise.prune.selection.costs import AdditiveCosts
    >>> site = Site("0", "attn", "attn.o", 4, 4, 8, kept=(0, 1, 2, 3))
    >>> path = walk({"0": site}, AdditiveCosts({"0": np.array([3.0, 1.0, 2.0, 4.0])}), Budget(heads=3))
    >>> [path.beginning(count).remove for count in (1, 2, 3)]
    [{'0': [1]}, {'0': [1, 2]}, {'0': [0, 1, 2]}]
    """
    keep = keep or Keep()
    keep.tell_unmet(sites, evidence)
    rooms = rooms_of(sites, keep, unit, evidence)
    total = reachable(sites, budget, scope, keep, unit, evidence)
    quota = quota_of(rooms, total, scope) if scope == "uniform" else None
    gone = sum(room.block.gone for room in rooms.values())
    steps = greedy(rooms, costs, max(total - gone, 0), scope, quota)
    return Path(sites, costs, tuple(steps), scope, keep, unit, evidence)
