"""Metered: budgets that are not counted in heads – what can be freed, and how much is to be freed."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site
from headwise.prune.selection.blocks import Room, Unit
from headwise.prune.selection.budget import Budget
from headwise.prune.selection.costs import AdditiveCosts
from headwise.prune.selection.greedy import Scope, greedy
from headwise.prune.selection.keep import Keep
from headwise.prune.selection.meters import Meter, all_freed, gone
from headwise.prune.selection.reach import common_levels, fewest, nearest_heads, none_may_go, quota_of, rooms_of


def metered_reach(
    sites: Mapping[str, Site],
    budget: Budget,
    meter: Meter | None,
    scope: Scope = "model",
    keep: Keep | None = None,
    unit: Unit = "group",
    evidence: Any = None,
) -> float:
    """How much of the resource is to be freed beyond what earlier cuts freed.

    Args:
        sites: sites of the model.
        budget: a share of the dense model's parameters, operations or cache.
        meter: what heads take of it.
        scope: as in `select`.
        keep: as in `select`.
        unit: as in `select`.
        evidence: as in `select`.

    Raises:
        BadInput: no meter; or the budget asks for more than can go, or for less than the smallest piece. The
            message names the nearest budget that can be met.

    >>> from headwise.prune.selection.meters import Linear
    >>> sites = {"0": Site("0", "attn", "attn.o", heads=4, kv_heads=4, head_dim=8, kept=(0, 1, 2, 3))}
    >>> meter = Linear("parameters", 100.0, {"0": 10.0}, {"0": 0.0})
    >>> metered_reach(sites, Budget(parameters=0.25), meter)
    25.0
    """
    if meter is None:
        raise BadInput(f"remove: {budget.amount} has to be measured on a model; give heads or fraction without one")
    rooms = rooms_of(sites, keep or Keep(), unit, evidence)
    already = gone(meter, {name: room.block for name, room in rooms.items()})
    share = float(getattr(budget, budget.amount))
    wanted = share * meter.total - already
    if wanted <= 1e-9 * meter.total:
        return 0.0
    amounts = sorted(_amounts(rooms, meter, scope))
    smallest, most = (amounts[0], amounts[-1]) if amounts else (0.0, 0.0)
    slack = 1e-9 * meter.total
    if already > 0 and wanted < smallest:
        # As near from below as an earlier cut could come: repeating a recipe removes nothing more.
        return 0.0
    if smallest and smallest <= wanted + slack and wanted < most + smallest:
        return min(wanted, most)
    nearest = already + (smallest if smallest and wanted < smallest else most)
    if not nearest:
        raise BadInput(f"remove: {_none_frees(meter, scope, unit)}")
    why = (
        f"less than what goes in one piece ({(already + smallest) / meter.total:.4g})"
        if smallest and wanted < smallest
        else "more than the keep-rules and the sites that can be cut leave"
    )
    raise BadInput(
        f"remove: {share:.4g} of the {meter.name} cannot be removed: {why}. "
        f"{_nearest(nearest, budget, meter, scope, unit)}"
    )


def require_piece(
    sites: Mapping[str, Site], budget: Budget, meter: Meter | None, scope: Scope, keep: Keep, unit: Unit
) -> None:
    """Return if a budget that is the most that may go lets one piece go, earlier cuts counted in.

    Raises:
        BadInput: it does not, or nothing may go. The message names the nearest budget that does.

    >>> sites = {"0": Site("0", "attn", "attn.o", heads=4, kv_heads=4, head_dim=8, kept=(0, 1, 2, 3))}
    >>> require_piece(sites, Budget(fraction=0.3), None, "model", Keep(), "group")
    """
    rooms = rooms_of(sites, keep, unit)
    least = fewest(rooms, scope)
    if not least:
        raise BadInput(f"remove: {none_may_go(scope, unit)}")
    if meter is None:
        most, total = budget.count(sites), sum(site.heads for site in sites.values())
        if most < least:
            raise BadInput(
                f"remove: at most {most} of {total} heads may go, fewer than go in one piece ({least} in all). "
                f"{nearest_heads(least, total, scope, unit)}"
            )
        return
    amounts = _amounts(rooms, meter, scope)
    if not amounts:
        raise BadInput(f"remove: {_none_frees(meter, scope, unit)}")
    share = float(getattr(budget, budget.amount))
    nearest = gone(meter, {name: room.block for name, room in rooms.items()}) + min(amounts)
    if share * meter.total < nearest - 1e-9 * meter.total:
        raise BadInput(
            f"remove: at most {share:.4g} of the {meter.name} may go, less than what goes in one piece "
            f"({nearest / meter.total:.4g} in all). {_nearest(nearest, budget, meter, scope, unit)}"
        )


def largest_first(
    sites: Mapping[str, Site], meter: Meter, scope: Scope = "model", keep: Keep | None = None, unit: Unit = "group"
) -> float:
    """The most that can be gone when the fewest heads have gone next, earlier cuts counted in: scores decide which.

    >>> from headwise.prune.selection.meters import Linear
    >>> sites = {name: Site(name, name, f"{name}.o", 2, 2, 8, kept=(0, 1)) for name in "01"}
    >>> largest_first(sites, Linear("parameters", 100.0, {"0": 10.0, "1": 12.0}, {"0": 0.0, "1": 0.0}))
    12.0
    """
    rooms = rooms_of(sites, keep or Keep(), unit)
    few = fewest(rooms, scope) - sum(room.block.gone for room in rooms.values())
    first = [amount for size, amount in _first(rooms, meter, scope) if size <= few]
    return gone(meter, {name: room.block for name, room in rooms.items()}) + max(first, default=0.0)


def _nearest(amount: float, budget: Budget, meter: Meter, scope: Scope, unit: Unit) -> str:
    return (
        f"The nearest budget that can be met is {budget.amount}: {math.ceil(amount / meter.total * 1e4) / 1e4:g} with "
        f"scope {scope!r}, unit {unit!r}; or relax keep"
    )


def _none_frees(meter: Meter, scope: Scope, unit: Unit) -> str:
    return f"{none_may_go(scope, unit)}, or no head that may go frees any {meter.name}"


def metered_quota(rooms: Mapping[str, Room], meter: Meter, amount: float) -> dict[str, int]:
    """Heads to go from each block for the largest equal loss that frees no more than an amount."""
    best = dict.fromkeys(rooms, 0)
    for level in common_levels(rooms):
        quota = _quota(rooms, level)
        if _walked(rooms, meter, quota) <= amount + 1e-9 * meter.total:
            best = quota
    return best


def _amounts(rooms: Mapping[str, Room], meter: Meter, scope: Scope) -> list[float]:
    """The least and the most that can be freed (every equal loss for scope `uniform`), without zeros."""
    found = [amount for _, amount in _first(rooms, meter, scope)]
    if scope != "uniform":
        found.append(_walked(rooms, meter))
    return [amount for amount in found if amount > 0]


def _first(rooms: Mapping[str, Room], meter: Meter, scope: Scope) -> Iterator[tuple[int, float]]:
    """Heads, over all calls, and what they free: of every piece that may go next, or of every equal loss for `uniform`."""
    if scope == "uniform":
        for quota in (_quota(rooms, level) for level in common_levels(rooms)):
            yield sum(quota.values()), _walked(rooms, meter, quota)
        return
    for room in rooms.values():
        pieces = room.pieces()
        if room.unit == "even":
            pieces = [tuple(piece[0] for piece in pieces)] if pieces else []
        for piece in pieces:
            left = tuple(head for head in room.left if head not in piece)
            yield len(piece) * len(room.block.sites), _freed(rooms, meter, {room.block.name: left})


def _quota(rooms: Mapping[str, Room], level: int) -> dict[str, int]:
    calls = sum(len(room.block.sites) for room in rooms.values())
    return quota_of(rooms, level * calls, "uniform")


def _walked(rooms: Mapping[str, Room], meter: Meter, quota: Mapping[str, int] | None = None) -> float:
    """What a walk without costs frees."""
    walked = {name: copy.copy(room) for name, room in rooms.items()}
    free = AdditiveCosts({s.name: np.zeros(s.heads) for room in rooms.values() for s in room.block.sites})
    greedy(walked, free, math.inf, "model", quota)
    return _freed(rooms, meter, {name: room.left for name, room in walked.items()})


def _freed(rooms: Mapping[str, Room], meter: Meter, changed: Mapping[str, Sequence[int]]) -> float:
    """What is freed where blocks come to these heads, all others staying as they are."""
    now = {name: room.left for name, room in rooms.items()}
    return all_freed(meter, (room.block for room in rooms.values()), now, {**now, **changed})
