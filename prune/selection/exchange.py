"""Exchange: swap a head that goes for one that stays while the costs fall."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headwise.prune.selection.blocks import Room
from headwise.prune.selection.costs import BlockCost, Costs
from headwise.prune.selection.greedy import Step, cheapest, greedy
from headwise.prune.selection.meters import Meter, brought_in, freed

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
    meter: Meter | None = None,
) -> tuple[list[Step], dict[str, Any]]:
    """A cheaper removal of as many heads, reached from a greedy one by the best swap again and again.

    A swap takes one removed unit back and removes another of the same size, in the same block or, with `between`,
    in any. Of units that take one head of every group, one of these heads is swapped for another of its group. Costs
    are those of whole sets, so what units do to each other counts. Ends where no swap helps: no worse than greedy,
    and as good as any neighbour.

    Args:
        rooms: what may go from each block, nothing taken yet; they are left as the result leaves them.
        costs: what removals cost.
        steps: the greedy removals.
        between: whether blocks may lose more or fewer heads than greedy took.
        swaps: the most that are made.
        meter: what the budget is counted in, if not in heads: a swap has to free as much as it takes back.

    Returns:
        The removals, in the order that greedy would take them; and as plain data how it went: `judged` swaps, by what
        they would save, the cost of the `start` and of what was `found`, `moves` (swaps made), and why it `stopped`.

    >>> import numpy as np
    >>> from headwise.analysis.sites import Site
    >>> from headwise.prune.selection.blocks import Block
    >>> from headwise.prune.selection.costs import AdditiveCosts
    >>> site = Site("0", "attn", "attn.o", 3, 3, 8, kept=(0, 1, 2))
    >>> dear = [Step("0", (0,), 3.0, 1)]
    >>> costs = AdditiveCosts({"0": np.array([3.0, 1.0, 2.0])})
    >>> found, facts = exchanged({"0": Room(Block((site,)), (), 1, "head")}, costs, dear)
    >>> [step.heads for step in found], facts["moves"], facts["found"]
    ([(1,)], 1, 1.0)
    """
    gone: dict[str, list[tuple[int, ...]]] = {name: [] for name in rooms}
    for step in steps:
        gone[step.block].append(step.heads)
    judged = moves = 0
    stopped = "as many swaps as may be made"
    while moves < swaps:
        total = sum(_cost(rooms[name], costs, units)[0] for name, units in gone.items())
        near = list(_swaps(rooms, costs, gone, between, meter))
        judged += len(near)
        best = max(near, key=lambda swap: swap.gain, default=None)
        if best is None or best.gain <= _LEAST * max(abs(total), 1e-300):
            stopped = "no swap helps"
            break
        gone[best.back[0]].remove(best.back[1])
        gone[best.out[0]].append(best.out[1])
        moves += 1
    found = in_order(rooms, costs, gone)
    start, end = (float(sum(step.cost for step in removal)) for removal in (steps, found))
    facts = {"judged": judged, "start": start, "found": end, "moves": moves, "stopped": stopped}
    return found, {"kind": "exchange", **facts}


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
    rooms: Mapping[str, Room],
    costs: Costs,
    gone: Mapping[str, list[tuple[int, ...]]],
    between: bool,
    meter: Meter | None,
) -> Iterator[_Swap]:
    """Every swap and what it saves."""
    now = {name: _cost(room, costs, gone[name])[0] for name, room in rooms.items()}
    outs = {name: list(_outs(room, costs, gone[name])) for name, room in rooms.items()} if between else {}
    for name, room in rooms.items():
        for unit in gone[name]:
            rest = [other for other in gone[name] if other != unit]
            without, state = _cost(room, costs, rest)
            offers = _twins(room, unit, rest) if _even(room) else _room(room, rest).pieces()
            back = _frees(room, rest, unit, meter)
            # Also within a block: the last head of a group frees what the group alone takes, too.
            offers = [other for other in offers if other != unit and len(other) == len(unit)]
            offers = [other for other in offers if _as_much(_frees(room, rest, other, meter), back)]
            if offers:
                for other, price in zip(offers, state.costs(offers), strict=True):
                    yield _Swap(now[name] - without - float(price), (name, unit), (name, other))
            for elsewhere, found in outs.items():
                if elsewhere == name or _adds(rooms, gone, meter, name, elsewhere):
                    continue
                for other, price in found:
                    if _as_much(_frees(rooms[elsewhere], gone[elsewhere], other, meter), back):
                        yield _Swap(now[name] - without - price, (name, unit), (elsewhere, other))


def _as_much(frees: float, back: float) -> bool:
    return abs(frees - back) <= 1e-9 * max(back, 1.0)


def _even(room: Room) -> bool:
    return room.unit == "even" and room.block.sites[0].kv_heads > 1


def _frees(room: Room, units: list[tuple[int, ...]], unit: tuple[int, ...], meter: Meter | None) -> float:
    """What a unit frees that goes after others, by the meter or in heads."""
    if meter is None:
        return float(len(unit) * len(room.block.sites))
    return freed(meter, room.block, _room(room, units).left, unit)


def _adds(
    rooms: Mapping[str, Room], gone: Mapping[str, list[tuple[int, ...]]], meter: Meter | None, back: str, out: str
) -> bool:
    """Whether a unit fewer from one block and one more from another changes what first cuts bring in."""
    cut = {name for name, room in rooms.items() if gone[name] or room.block.gone}
    whole = len(gone[back]) == 1 and not rooms[back].block.gone
    return brought_in(meter, cut, {*cut, out} - ({back} if whole else set())) != 0


def _twins(room: Room, unit: tuple[int, ...], rest: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The unit with one of its heads replaced by another of the same group."""
    group = room.block.sites[0].group
    return [
        tuple(sorted({*unit, head} - {mine}))
        for mine in unit
        for head in _room(room, rest).left
        if head not in unit and head not in room.protected and group(head) == group(mine)
    ]


def _outs(room: Room, costs: Costs, units: list[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], float]]:
    """What could go next from a block, and what it would add."""
    if _even(room):
        best = cheapest(_room(room, units), _cost(room, costs, units)[1])
        if best is not None:
            yield best.heads, best.cost
        return
    pieces = _room(room, units).pieces()
    if pieces:
        prices = _cost(room, costs, units)[1].costs(pieces)
        yield from ((piece, float(price)) for piece, price in zip(pieces, prices, strict=True))


def in_order(rooms: Mapping[str, Room], costs: Costs, gone: Mapping[str, list[tuple[int, ...]]]) -> list[Step]:
    """The removal of exactly these units, as greedy would order it; `rooms` are left as they are then.

    >>> import numpy as np
    >>> from headwise.analysis.sites import Site
    >>> from headwise.prune.selection.blocks import Block
    >>> from headwise.prune.selection.costs import AdditiveCosts
    >>> rooms = {"0": Room(Block((Site("0", "attn", "attn.o", 3, 3, 8, kept=(0, 1, 2)),)), (), 1, "head")}
    >>> costs = AdditiveCosts({"0": np.array([3.0, 1.0, 2.0])})
    >>> [step.heads for step in in_order(rooms, costs, {"0": [(0,), (1,)]})]
    [(1,), (0,)]
    """
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
