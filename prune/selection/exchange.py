"""Exchange: swap a head that goes for one that stays while the costs fall."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headwise.prune.selection.blocks import Room
from headwise.prune.selection.costs import BlockCost, Costs
from headwise.prune.selection.greedy import Step, greedy

#: Swaps that lower the cost by less than this part of it are rounding.
_LEAST = 1e-9


@dataclass(frozen=True)
class _Swap:
    gain: float
    back: tuple[str, tuple[int, ...]]
    out: tuple[str, tuple[int, ...]]


def exchanged(
    rooms: Mapping[str, Room],
    costs: Costs,
    steps: list[Step],
    *,
    between: bool = True,
    swaps: int = 1000,
) -> list[Step]:
    """A cheaper removal of as many heads, reached from a greedy one by the best swap again and again.

    A swap takes one removed unit back and removes another of the same size, in the same block or, with `between`,
    in any. Costs are those of whole sets, so what units do to each other counts. Ends where no swap helps: no worse
    than greedy, and as good as any neighbour.

    Args:
        rooms: what may go from each block, nothing taken yet; they are left as the result leaves them.
        costs: what removals cost.
        steps: the greedy removals.
        between: whether blocks may lose more or fewer heads than greedy took.
        swaps: the most that are made.

    Returns:
        The removals, in the order that greedy would take them.

    >>> import numpy as np
    >>> from headwise.analysis.sites import Site
    >>> from headwise.prune.selection.blocks import Block
    >>> from headwise.prune.selection.costs import AdditiveCosts
    >>> site = Site("0", "attn", "attn.o", 3, 3, 8, kept=(0, 1, 2))
    >>> dear = [Step("0", (0,), 3.0, 1)]
    >>> costs = AdditiveCosts({"0": np.array([3.0, 1.0, 2.0])})
    >>> found = exchanged({"0": Room(Block((site,)), (), 1, "head")}, costs, dear)
    >>> [step.heads for step in found]
    [(1,)]
    """
    gone: dict[str, list[tuple[int, ...]]] = {name: [] for name in rooms}
    for step in steps:
        gone[step.block].append(step.heads)
    for _ in range(swaps):
        total = sum(_cost(rooms[name], costs, units)[0] for name, units in gone.items())
        best = max(_swaps(rooms, costs, gone, between), key=lambda swap: swap.gain, default=None)
        if best is None or best.gain <= _LEAST * max(abs(total), 1e-300):
            break
        gone[best.back[0]].remove(best.back[1])
        gone[best.out[0]].append(best.out[1])
    return _in_order(rooms, costs, gone)


def _cost(room: Room, costs: Costs, units: list[tuple[int, ...]]) -> tuple[float, BlockCost]:
    """What a set costs together, and the block's costs after it."""
    state, total = costs.start(room.block), 0.0
    for unit in units:
        total += float(state.costs([unit])[0])
        state.remove(unit)
    return total, state


def _room(room: Room, units: list[tuple[int, ...]]) -> Room:
    taken = copy.copy(room)
    for unit in units:
        taken.take(unit)
    return taken


def _swaps(
    rooms: Mapping[str, Room], costs: Costs, gone: Mapping[str, list[tuple[int, ...]]], between: bool
) -> Iterator[_Swap]:
    """Every swap and what it saves; units of grouped queries that go one a group are not swapped."""
    able = {name: room for name, room in rooms.items() if room.unit != "even" or room.block.sites[0].kv_heads == 1}
    now = {name: _cost(room, costs, gone[name])[0] for name, room in able.items()}
    outs = {name: list(_outs(room, costs, gone[name])) for name, room in able.items()} if between else {}
    for name, room in able.items():
        for unit in gone[name]:
            rest = [other for other in gone[name] if other != unit]
            without = _cost(room, costs, rest)[0]
            size = len(unit) * len(room.block.sites)
            for other, price in _outs(room, costs, rest):
                if other != unit and len(other) == len(unit):
                    yield _Swap(now[name] - without - price, (name, unit), (name, other))
            for elsewhere, offers in outs.items():
                for other, price in offers if elsewhere != name else ():
                    if len(other) * len(rooms[elsewhere].block.sites) == size:
                        yield _Swap(now[name] - without - price, (name, unit), (elsewhere, other))


def _outs(room: Room, costs: Costs, units: list[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], float]]:
    """What could go next from a block, and what it would add."""
    pieces = _room(room, units).pieces()
    if pieces:
        prices = _cost(room, costs, units)[1].costs(pieces)
        yield from ((piece, float(price)) for piece, price in zip(pieces, prices, strict=True))


def _in_order(rooms: Mapping[str, Room], costs: Costs, gone: Mapping[str, list[tuple[int, ...]]]) -> list[Step]:
    """The removal of exactly these units, as greedy would order it."""
    only = {}
    for name, room in rooms.items():
        chosen = {head for unit in gone[name] for head in unit}
        only[name] = copy.copy(room)
        only[name].protected = frozenset(head for head in room.block.kept if head not in chosen)
        only[name].minimum = 0
    steps = greedy(
        only, costs, sum(len(unit) * len(rooms[n].block.sites) for n, units in gone.items() for unit in units)
    )
    for name, room in rooms.items():
        for unit in gone[name]:
            room.take(unit)
    return steps
