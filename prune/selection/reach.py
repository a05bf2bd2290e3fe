"""Reach: whether a budget can be met, known before anything is measured."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site
from headwise.prune.selection.blocks import Room, Unit, blocks_of
from headwise.prune.selection.budget import Budget
from headwise.prune.selection.costs import AdditiveCosts
from headwise.prune.selection.greedy import Scope, greedy
from headwise.prune.selection.keep import Keep


def rooms_of(sites: Mapping[str, Site], keep: Keep, unit: Unit = "group", evidence: Any = None) -> dict[str, Room]:
    """What may go from each block under the keep-rules.

    Raises:
        BadInput: a keep-rule names what the model does not have.

    >>> site = Site("0", "attn", "attn.o", 2, 2, 8, kept=(0, 1))
    >>> rooms_of({"0": site}, Keep(heads={"0": [1]}))["0"].pieces()
    [(0,)]
    """
    protected = keep.protected(sites, evidence)
    return {
        name: Room(
            block,
            frozenset(head for site in block.sites for head in protected.get(site.name, ())),
            keep.minimum_per_site,
            unit,
        )
        for name, block in blocks_of(sites).items()
    }


def reachable(
    sites: Mapping[str, Site],
    budget: Budget,
    scope: Scope = "model",
    keep: Keep | None = None,
    unit: Unit = "group",
    evidence: Any = None,
) -> int:
    """How many heads will be gone in the end, over all sites and earlier cuts: the budget, or just below it.

    Needs no model and no evidence (rules about roles count only once there is evidence).

    Raises:
        BadInput: the keep-rules, or sites that cannot be cut, leave too little to remove; or the budget is
            smaller than the smallest piece. The message names the nearest budget that can be met.

    >>> sites = {"0": Site("0", "attn", "attn.o", heads=6, kv_heads=2, head_dim=8, kept=tuple(range(6)))}
    >>> reachable(sites, Budget(heads=4))
    3
    """
    rooms = rooms_of(sites, keep or Keep(), unit, evidence)
    wanted, gone = budget.count(sites), sum(room.block.gone for room in rooms.values())
    # A share that is asked for, and is less than a head, is not nothing.
    asked = wanted > 0 or bool(budget.fraction)
    if wanted <= gone and (gone or not asked):
        return gone
    met = gone + sum(quota_of(rooms, wanted, scope).values())
    smallest, room_for = _smallest(rooms, scope), _largest(rooms, scope)
    if gone and wanted - gone < smallest and (scope != "uniform" or len(_levels_now(rooms)) == 1):
        # As near from below as an earlier cut could come: repeating a recipe removes nothing more.
        return gone
    if met == gone and room_for > 0:
        nearest, why = gone + smallest, f"less than what goes in one piece ({smallest} heads)"
    elif (met < wanted or not wanted) and met - gone >= room_for:
        if smallest and wanted - met < smallest:
            return met
        nearest, why = gone + room_for, "more than the keep-rules and the sites that can be cut leave"
    else:
        return met
    total = sum(site.heads for site in sites.values())
    if not nearest:
        raise BadInput(f"remove: {none_may_go(scope, unit)}")
    said = wanted or f"a share of {budget.fraction:g}"
    raise BadInput(
        f"remove: {said} of {total} heads cannot be removed: {why}. {nearest_heads(nearest, total, scope, unit)}"
    )


def nearest_heads(heads: int, total: int, scope: Scope, unit: Unit) -> str:
    """The nearest budget that can be met, in heads and as a share of all.

    >>> nearest_heads(3, 12, "model", "group")[:73]
    'The nearest budget that can be met is heads: 3 (fraction: 0.25) with scop'
    """
    share = np.ceil(heads / total * 1e4) / 1e4
    return (
        f"The nearest budget that can be met is heads: {heads} (fraction: {share:g}) with scope {scope!r}, "
        f"unit {unit!r}; or relax keep"
    )


def fewest(rooms: Mapping[str, Room], scope: Scope) -> int:
    """The fewest heads that can be gone next, earlier cuts included; 0 if none may go.

    >>> site = Site("0", "attn", "attn.o", 4, 2, 8, kept=(0, 1, 2, 3))
    >>> fewest(rooms_of({"0": site}, Keep()), "model"), fewest(rooms_of({"0": site}, Keep(layers=["0"])), "model")
    (2, 0)
    """
    smallest = _smallest(rooms, scope)
    return _gone(rooms) + smallest if smallest else 0


def none_may_go(scope: Scope, unit: Unit) -> str:
    """That there is nothing to choose from, and what to do.

    >>> none_may_go("model", "group")[-56:]
    "'model', unit 'group'; relax keep or choose another unit"
    """
    rules = "the keep-rules and the sites that can be cut"
    return f"{rules} leave nothing to remove with scope {scope!r}, unit {unit!r}; relax keep or choose another unit"


def ladder(
    sites: Mapping[str, Site], limit: int, scope: Scope = "model", keep: Keep | None = None, unit: Unit = "group",
    evidence: Any = None,
) -> list[int]:  # fmt: skip
    """Numbers of heads to try, small to large: the fewest that can go, about twenty steps, and the most up to a limit.

    Empty if no head may go, or the limit is less than what goes in one piece.

    >>> ladder({"0": Site("0", "attn", "attn.o", heads=4, kv_heads=4, head_dim=8, kept=(0, 1, 2, 3))}, 2)
    [1, 2]
    """
    rooms = rooms_of(sites, keep or Keep(), unit, evidence)
    total, gone = sum(site.heads for site in sites.values()), _gone(rooms)
    fewest, most = gone + _smallest(rooms, scope), min(limit, gone + _largest(rooms, scope))
    if not gone < fewest <= most:
        return []
    wanted = {fewest, most, *(round(total * step / 20) for step in range(1, 20))}
    met = {gone + sum(quota_of(rooms, count, scope).values()) for count in wanted if fewest <= count <= most}
    return sorted(met)


def quota_of(rooms: Mapping[str, Room], wanted: int, scope: Scope) -> dict[str, int]:
    """Heads that may go from each block now, so that the model ends at `wanted` or just below.

    Scopes `model` and `site` are met by their greedy walk, so the numbers are those of a walk without costs;
    `uniform` gives every site the same number of lost heads, earlier cuts included.

    >>> site = Site("0", "attn", "attn.o", 4, 4, 8, kept=(0, 1, 2, 3))
    >>> quota_of(rooms_of({"0": site}, Keep()), 2, "uniform")
    {'0': 2}
    """
    if scope != "uniform":
        return _walk(rooms, wanted - sum(room.block.gone for room in rooms.values()), scope)
    calls = sum(len(room.block.sites) for room in rooms.values())
    common = common_levels(rooms)
    level = max((lost for lost in common if lost <= wanted // calls), default=None)
    if level is None:
        return dict.fromkeys(rooms, 0)
    return {name: level * len(room.block.sites) - room.block.gone for name, room in rooms.items()}


def _walk(rooms: Mapping[str, Room], budget: int, scope: Scope) -> dict[str, int]:
    rooms = {name: copy.copy(room) for name, room in rooms.items()}
    free = AdditiveCosts({s.name: np.zeros(s.heads) for room in rooms.values() for s in room.block.sites})
    taken = dict.fromkeys(rooms, 0)
    for step in greedy(rooms, free, max(budget, 0), scope):
        taken[step.block] += step.size
    return taken


def walked(room: Room) -> list[tuple[int, ...]]:
    """What is left of a block, step by step, when all goes that may, whatever it costs.

    >>> from headwise.prune.selection.blocks import Block
    >>> walked(Room(Block((Site("0", "attn", "attn.o", 4, 2, 8, kept=(0, 1, 2, 3)),)), (), 1, "group"))
    [(0, 1, 2, 3), (2, 3)]
    """
    left = [room.left]
    alone = {room.block.name: copy.copy(room)}
    free = AdditiveCosts({site.name: np.zeros(site.heads) for site in room.block.sites})
    for step in greedy(alone, free, room.block.heads * len(room.block.sites)):
        left.append(tuple(head for head in left[-1] if head not in step.heads))
    return left


def _levels(room: Room) -> list[int]:
    """The numbers of heads, of one call, that a block can have lost."""
    return [room.block.heads - len(left) for left in walked(room)]


def common_levels(rooms: Mapping[str, Room]) -> Sequence[int]:
    """The numbers of heads that every site can have lost.

    >>> site = Site("0", "attn", "attn.o", 4, 2, 8, kept=(0, 1, 2, 3))
    >>> common_levels(rooms_of({"0": site}, Keep()))
    [0, 2]
    """
    shared = set.intersection(*(set(_levels(room)) for room in rooms.values())) if rooms else set()
    return sorted(shared)


def _smallest(rooms: Mapping[str, Room], scope: Scope) -> int:
    """The fewest heads that can go at once, 0 if none can."""
    if scope == "uniform":
        calls = sum(len(room.block.sites) for room in rooms.values())
        return next((level * calls - _gone(rooms) for level in common_levels(rooms) if level * calls > _gone(rooms)), 0)
    sizes = [
        (len(pieces) if room.unit == "even" else min(map(len, pieces))) * len(room.block.sites)
        for room in rooms.values()
        if (pieces := room.pieces())
    ]
    return min(sizes, default=0)


def _largest(rooms: Mapping[str, Room], scope: Scope) -> int:
    """The most heads that can still go."""
    if scope == "uniform":
        calls = sum(len(room.block.sites) for room in rooms.values())
        return max(max(common_levels(rooms), default=0) * calls - _gone(rooms), 0)
    return sum(_walk(rooms, sum(room.block.heads * len(room.block.sites) for room in rooms.values()), scope).values())


def _levels_now(rooms: Mapping[str, Room]) -> set[int]:
    """The numbers of heads that sites have lost to earlier cuts."""
    return {room.block.heads - len(room.block.kept) for room in rooms.values()}


def _gone(rooms: Mapping[str, Room]) -> int:
    return sum(room.block.gone for room in rooms.values())
