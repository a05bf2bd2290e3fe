"""Greedy removal: the unit that costs least goes, then the costs of its block are looked at again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from headwise.prune.selection.blocks import Room
from headwise.prune.selection.costs import Ahead, BlockCost, Costs
from headwise.prune.selection.meters import Meter, brought_in, freed

Scope = Literal["model", "site", "uniform"]


@dataclass(frozen=True)
class Step:
    """One removal.

    Attributes:
        block: name of the block.
        heads: what went.
        cost: what it cost when it went, given all that had gone before.
        size: heads counted over all calls of the block.
    """

    block: str
    heads: tuple[int, ...]
    cost: float
    size: int


def cheapest(room: Room, costs: BlockCost) -> Step | None:
    """The unit of a block that costs least now, or None if nothing may go.

    For `even` units the cheapest free head of every group is taken, and the price is that of all together.

    >>> from headwise.analysis.sites import Site
    >>> from headwise.prune.selection.blocks import Block
    >>> from headwise.prune.selection.costs import AdditiveBlock
    >>> room = Room(Block((Site("0", "attn", "attn.o", 2, 2, 8, kept=(0, 1)),)), (), 1, "head")
    >>> cheapest(room, AdditiveBlock(np.array([3.0, 2.0]))).heads
    (1,)
    """
    pieces = room.pieces()
    if not pieces:
        return None
    if room.unit == "even":
        singles = [[(head,) for head in group] for group in pieces]
        chosen = [group[int(np.argmin(costs.costs(group)))][0] for group in singles]
        pieces = [tuple(chosen)]
    prices = costs.costs(pieces)
    best = int(np.argmin(prices))
    return Step(room.block.name, pieces[best], float(prices[best]), len(pieces[best]) * len(room.block.sites))


def greedy(
    rooms: Mapping[str, Room],
    costs: Costs,
    budget: float | int,
    scope: Scope = "model",
    quota: Mapping[str, int] | None = None,
    meter: Meter | None = None,
) -> list[Step]:
    """The removals, in order, until the next unit would exceed the budget; `rooms` are left as they are then.

    Args:
        rooms: what may go from each block.
        costs: what it costs.
        budget: heads that may still go, over all calls; with a meter, how much of its resource may be freed.
        scope: `model` takes the cheapest unit anywhere, `site` levels the share that each block loses and
            lets the cost decide between equals, `uniform` needs a quota and otherwise works like `model`.
        quota: most heads to go from each block, over all calls.
        meter: what the budget is counted in, if not in heads. Then the unit that costs least for what it frees
            goes first, and units that free nothing stay.

    >>> from headwise.analysis.sites import Site
    >>> from headwise.prune.selection.blocks import Block
    >>> from headwise.prune.selection.costs import AdditiveCosts
    >>> room = Room(Block((Site("0", "attn", "attn.o", 3, 3, 8, kept=(0, 1, 2)),)), (), 1, "head")
    >>> steps = greedy({"0": room}, AdditiveCosts({"0": np.array([3.0, 1.0, 2.0])}), 2)
    >>> [step.heads for step in steps]
    [(1,), (2,)]
    """
    if isinstance(costs, Ahead):
        costs.ahead(rooms)
    states = {name: costs.start(room.block) for name, room in rooms.items()}
    spare = dict(quota) if quota is not None else {}
    offers = {name: cheapest(room, states[name]) for name, room in rooms.items()}
    level, steps = scope == "site", list[Step]()
    # What sums of fractions of a resource lose by rounding must not keep the last unit out.
    slack = 1e-9 * meter.total if meter is not None else 0.0
    cut = {name for name, room in rooms.items() if len(room.left) < room.block.heads}
    while True:
        prices = {
            name: _frees(rooms[name], offer, meter)
            for name, offer in offers.items()
            if offer is not None and offer.size <= spare.get(name, math.inf)
        }
        # What a first cut brings in is taken from the budget, not from the unit's worth: it comes once for a stack.
        added = {name: brought_in(meter, cut, {*cut, name}) for name in prices}
        fitting = [offers[name] for name, price in prices.items() if 0 < price <= budget + added[name] + slack]
        if not fitting:
            return steps
        # `min` keeps the first of equals: forward order breaks ties.
        step = min(
            (offer for offer in fitting if offer is not None),
            key=lambda offer: (
                _share(rooms[offer.block], offer) if level else 0.0,
                offer.cost if meter is None else offer.cost / prices[offer.block],
            ),
        )
        name = step.block
        steps.append(step)
        budget -= prices[name] - added[name]
        cut.add(name)
        if name in spare:
            spare[name] -= step.size
        states[name].remove(step.heads)
        rooms[name].take(step.heads)
        offers[name] = cheapest(rooms[name], states[name])


def _frees(room: Room, offer: Step, meter: Meter | None) -> float:
    return float(offer.size) if meter is None else freed(meter, room.block, room.left, offer.heads)


def _share(room: Room, offer: Step) -> float:
    """The part of the dense block that would be gone, rounded so that equal shares are equal numbers."""
    return round(1 - (len(room.left) - len(offer.heads)) / room.block.heads, 9)
