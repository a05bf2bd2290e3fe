"""Curves: what each number of removals from a block costs and frees, and the numbers that cost least together."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headwise.prune.selection.blocks import Room
from headwise.prune.selection.costs import Costs
from headwise.prune.selection.greedy import Step, greedy
from headwise.prune.selection.meters import Meter

#: More sums than these are thinned: the result is then the best of many, not surely of all.
_SUMS = 100_000


@dataclass(frozen=True)
class Curve:
    """A block's removals in greedy order.

    Attributes:
        steps: the removals.
        costs: what the first n cost together, [n + 1].
        frees: what the first n free in this block, in the budget's resource, [n + 1].
    """

    steps: tuple[Step, ...]
    costs: np.ndarray
    frees: np.ndarray

    @property
    def heads(self) -> np.ndarray:
        """How many heads the first n are, over all calls, [n + 1].

        >>> Curve((Step("0", (1, 2), 0.5, 2),), np.zeros(2), np.zeros(2)).heads
        array([0., 2.])
        """
        return np.cumsum([0.0, *(step.size for step in self.steps)])


def curve_of(room: Room, costs: Costs, meter: Meter | None = None) -> Curve:
    """The curve of one block; the room is left as it is.

    Args:
        room: what may go.
        costs: what it costs.
        meter: what the budget is counted in, if not in heads.

    >>> from headwise.analysis.sites import Site
    >>> from headwise.prune.selection.blocks import Block
    >>> from headwise.prune.selection.costs import AdditiveCosts
    >>> room = Room(Block((Site("0", "attn", "attn.o", 3, 3, 8, kept=(0, 1, 2)),)), (), 1, "head")
    >>> curve_of(room, AdditiveCosts({"0": np.array([3.0, 1.0, 2.0])})).costs
    array([0., 1., 3.])
    """
    steps = tuple(greedy({room.block.name: copy.copy(room)}, costs, math.inf))
    left, frees = room.left, [0.0]
    for step in steps:
        left = tuple(head for head in left if head not in step.heads)
        if meter is None:
            frees.append(frees[-1] + step.size)
        else:
            frees.append(meter.used(room.block, room.left) - meter.used(room.block, left))
    return Curve(steps, np.cumsum([0.0, *(step.cost for step in steps)]), np.array(frees))


def frees_together(
    curves: Mapping[str, Curve], counts: Mapping[str, int], meter: Meter | None, cut: Collection[str]
) -> float:
    """What numbers of removals free in all, in the budget's resource.

    Args:
        curves: removals by block.
        counts: how many of them are made.
        meter: what the budget is counted in, if not in heads.
        cut: blocks that have lost heads before.

    >>> frees_together({"0": Curve((Step("0", (2,), 1.0, 1),), np.zeros(2), np.array([0.0, 2.0]))}, {"0": 1}, None, ())
    2.0
    """
    alone = math.fsum(float(curves[name].frees[count]) for name, count in counts.items())
    if meter is None:
        return alone
    return alone + meter.added(cut) - meter.added({*cut, *(name for name, count in counts.items() if count)})


def cheapest_counts(curves: Sequence[Curve], low: float | int, high: float | int = math.inf) -> list[int] | None:
    """How many removals of each block together free at least `low` and at most `high` at the least cost.

    Dynamic programming over blocks: of all sums of costs that free the same, the smallest is kept; without an upper
    end also only those that no other beats in both (Nemhauser & Ullmann, 1969). Exact for costs that add up over
    blocks, as long as there are no more than 100,000 different sums; beyond, sums that free nearly the same are one.

    Returns:
        Removals by block, or None if nothing frees an amount in between.

    >>> step = Step("0", (0,), 1.0, 1)
    >>> dear, cheap = (Curve((step, step), np.array(costs), np.arange(3.0)) for costs in ([0, 5, 6], [0, 1, 9]))
    >>> cheapest_counts([dear, cheap], 2, 2)
    [2, 0]
    """
    size = max([abs(low), *(float(curve.frees[-1]) for curve in curves)], default=1.0) or 1.0
    grain = 1e-9 * size
    frees, costs = np.zeros(1), np.zeros(1)
    ways: list[tuple[np.ndarray, np.ndarray]] = []
    for curve in curves:
        more = frees[:, None] + curve.frees
        price = (costs[:, None] + curve.costs).ravel()
        # More than enough is enough: without an upper end all such sums are alike.
        flat = np.minimum(more, low).ravel() if math.isinf(high) else more.ravel()
        kept = _kept(np.round(flat / grain), price, open_ended=math.isinf(high))
        kept = kept[flat[kept] <= high + grain]
        before, chosen = np.divmod(kept, len(curve.frees))
        ways.append((before, chosen))
        frees, costs = flat[kept], price[kept]
    fitting = np.flatnonzero(frees >= low - grain)
    if not len(fitting):
        return None
    place = int(fitting[np.argmin(costs[fitting])])
    counts: list[int] = []
    for before, chosen in reversed(ways):
        counts.append(int(chosen[place]))
        place = int(before[place])
    return counts[::-1]


def _kept(frees: np.ndarray, price: np.ndarray, *, open_ended: bool) -> np.ndarray:
    """Places of the cheapest way to free each amount; of those that free more for less, if more is never worse."""
    order = np.lexsort((price, -frees))
    first = np.ones(len(order), dtype=bool)
    first[1:] = frees[order][1:] != frees[order][:-1]
    order = order[first]
    if open_ended:
        # From the largest amount down: a smaller one is worth keeping only if it is cheaper than all larger ones.
        best = np.minimum.accumulate(price[order])
        order = order[np.concatenate([[True], price[order][1:] < best[:-1]])]
    if len(order) > _SUMS:
        buckets = np.linspace(0, len(order), _SUMS + 1).astype(int)
        order = np.array([part[np.argmin(price[part])] for part in np.split(order, buckets[1:-1]) if len(part)])
    return order


def steps_of(curves: Mapping[str, Curve], counts: Mapping[str, int]) -> dict[str, list[tuple[int, ...]]]:
    """The units that go from each block for these numbers of removals.

    >>> steps_of({"0": Curve((Step("0", (2,), 1.0, 1),), np.zeros(2), np.zeros(2))}, {"0": 1})
    {'0': [(2,)]}
    """
    return {name: [step.heads for step in curves[name].steps[: counts[name]]] for name in curves}
