"""Timed: budgets in milliseconds – what can be reached, and the removals that reach it at the least cost."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site
from headwise.prune.selection.blocks import Room, Unit
from headwise.prune.selection.budget import Budget
from headwise.prune.selection.costs import AdditiveCosts, Costs
from headwise.prune.selection.curves import Curve, cheapest_counts, curve_of, steps_of
from headwise.prune.selection.exchange import in_order
from headwise.prune.selection.greedy import Scope, Step, greedy
from headwise.prune.selection.keep import Keep
from headwise.prune.selection.meters import Table
from headwise.prune.selection.reach import common_levels, quota_of, rooms_of


class Time(BaseModel):
    """The most that a forward pass may take in the end, at a stated number of texts and tokens.

    `at_most`: how many heads may go for that, earlier cuts included; all that may, if None.

    >>> Time(milliseconds=12.0, batch=8, length=128).milliseconds
    12.0
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    milliseconds: float = Field(gt=0)
    batch: int = Field(ge=1)
    length: int = Field(ge=1)
    at_most: Budget | None = None

    @property
    def where(self) -> str:
        """The setting in words.

        >>> Time(milliseconds=12.0, batch=8, length=128).where
        'batch 8 x 128 tokens'
        """
        return f"batch {self.batch} x {self.length} tokens"


def timed_reach(
    sites: Mapping[str, Site],
    time: Time,
    table: Table,
    scope: Scope = "model",
    keep: Keep | None = None,
    unit: Unit = "group",
    evidence: Any = None,
) -> float:
    """Milliseconds that are to be saved by the latency table; 0 where an earlier cut has saved them.

    Raises:
        BadInput: the table says that even with all gone that may go the model takes longer, or that nothing has to
            go. The message names the nearest time that can be reached.

    >>> sites = {"0": Site("0", "attn", "attn.o", heads=3, kv_heads=3, head_dim=4, kept=(0, 1, 2))}
    >>> table = Table("milliseconds", 9.0, {"0": [0.0, 0.0, 2.0, 3.0]})
    >>> timed_reach(sites, Time(milliseconds=7, batch=1, length=8), table)
    2.0
    """
    rooms = rooms_of(sites, keep or Keep(), unit, evidence)
    wanted = table.total - time.milliseconds
    at = f"{time.milliseconds:.4g} ms at {time.where}"
    if wanted <= 0:
        if any(room.block.gone for room in rooms.values()):
            return 0.0
        raise BadInput(
            f"reach: {at} is no limit: the model takes {table.total:.4g} ms there with all its heads; ask for less"
        )
    cap = cap_of(time, sites, rooms)
    most = _most(rooms, table, scope, cap)
    if wanted > most + 1e-9 * table.total:
        nearest = math.ceil((table.total - most) * 1e3) / 1e3
        bound = "" if cap is None else f" within remove ({sum(r.block.gone for r in rooms.values()) + cap} heads)"
        if most <= 1e-9 * table.total:
            raise BadInput(
                f"reach: {at} cannot be reached: by the latency table of this machine the model takes "
                f"{table.total:.4g} ms there, also with all heads gone that may go{bound}; relax keep"
                f"{' or remove' if bound else ''}, or choose a larger batch or length"
            )
        raise BadInput(
            f"reach: {at} cannot be reached: the model takes {table.total:.4g} ms there, and {table.total - most:.4g} "
            f"ms with all heads gone that may go{bound}, by the latency table of this machine. The nearest budget that "
            f"can be met is milliseconds: {nearest:.6g} with scope {scope!r}, unit {unit!r}; or relax keep"
            f"{' or remove' if bound else ''}"
        )
    return wanted


def cap_of(time: Budget | Time, sites: Mapping[str, Site], rooms: Mapping[str, Room]) -> int | None:
    """How many heads may still go for a time, or None if there is no bound.

    >>> cap_of(Time(milliseconds=1, batch=1, length=8, at_most=Budget(heads=3)), {}, {})
    3
    """
    if isinstance(time, Budget) or time.at_most is None:
        return None
    return max(time.at_most.count(sites) - sum(room.block.gone for room in rooms.values()), 0)


def timed(
    rooms: Mapping[str, Room], costs: Costs, save: float | int, scope: Scope, table: Table, cap: int | None = None
) -> list[Step]:
    """The removals that save enough time at the least cost; `rooms` are left as they are then.

    Scope `model` chooses how many heads each block loses by dynamic programming (`cheapest_counts`), since a table
    may have steps: the next head alone may save nothing. `site` and `uniform` take the first of their levels that
    saves enough. What need not go is put back.

    Args:
        rooms: what may go from each block.
        costs: what it costs.
        save: milliseconds, from `timed_reach`.
        scope: as in `select`.
        table: time by block and number of heads.
        cap: heads that may go at most, over all calls.

    Raises:
        BadInput: scope `site` takes more heads than that; with the others `timed_reach` has refused it before.

    >>> import numpy as np
    >>> from headwise.prune.selection.costs import AdditiveCosts
    >>> rooms = rooms_of({"0": Site("0", "attn", "attn.o", 3, 3, 4, kept=(0, 1, 2))}, Keep())
    >>> table = Table("milliseconds", 9.0, {"0": [0.0, 0.0, 2.0, 2.0]})  # two heads take as long as three
    >>> [s.heads for s in timed(rooms, AdditiveCosts({"0": np.array([3.0, 1.0, 2.0])}), 1.0, "model", table)]
    [(1,), (2,)]
    """
    if save <= 0:
        return []
    if scope != "model":
        steps: list[Step] = []
        for steps in _levels(rooms, costs, scope):
            if _saves(rooms, table, steps) >= save - 1e-9 * table.total:
                break
        if cap is not None and (heads := sum(step.size for step in steps)) > cap:
            raise BadInput(f"reach: it takes {heads} heads at scope {scope!r}, remove lets {cap} go; raise one of both")
        for step in steps:
            rooms[step.block].take(step.heads)
        return steps
    curves = {name: curve_of(room, costs, table) for name, room in rooms.items()}
    counts = dict(zip(curves, _numbers(list(curves.values()), save - 1e-9 * table.total, cap), strict=True))
    put_back(curves, counts, save - 1e-9 * table.total)
    return in_order(rooms, costs, steps_of(curves, counts))


def _numbers(curves: Sequence[Curve], save: float, cap: int | None) -> list[int]:
    """The numbers of removals that save enough at the least cost.

    Where they take more heads than the cap, every head gets a price, the smallest that brings them under it: near the
    best, if not surely the best.
    """

    def at(price: float) -> tuple[list[int], int]:
        priced = [replace(curve, costs=curve.costs + price * curve.heads) for curve in curves]
        # Rounding may ask for a hair more than all.
        counts = cheapest_counts(priced, save) or [len(curve.steps) for curve in curves]
        return counts, sum(int(curve.heads[n]) for curve, n in zip(curves, counts, strict=True))

    found, heads = at(0.0)
    if cap is None or heads <= cap:
        return found
    low, high = 0.0, 1e-3 * max(float(np.ptp(curve.costs)) for curve in curves) or 1.0
    for _ in range(60):
        if at(high)[1] <= cap:
            break
        low, high = high, 2 * high
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if at(middle)[1] <= cap else (middle, high)
    return at(high)[0]


def _levels(rooms: Mapping[str, Room], costs: Costs, scope: Scope) -> Iterator[list[Step]]:
    """The removals of each level, small to large; `rooms` are left as they are."""
    if scope == "site":
        steps = greedy({name: copy.copy(room) for name, room in rooms.items()}, costs, math.inf, scope)
        yield from (steps[:number] for number in range(1, len(steps) + 1))
        return
    calls = sum(len(room.block.sites) for room in rooms.values())
    for level in common_levels(rooms):
        quota = quota_of(rooms, level * calls, "uniform")
        yield greedy({name: copy.copy(room) for name, room in rooms.items()}, costs, math.inf, scope, quota)


def put_back(curves: Mapping[str, Curve], counts: dict[str, int], save: float | int) -> None:
    """Put back what the time does not need, the dearest first: a head whose removal pays is not removed for that.

    Args:
        curves: removals by block, and what they save.
        counts: how many of them are made; the result.
        save: milliseconds that have to be saved.

    >>> step, counts = Step("0", (0,), 1.0, 1), {"0": 2}
    >>> put_back({"0": Curve((step, step), np.arange(3.0), np.array([0.0, 2.0, 3.0]))}, counts, 1.5)
    >>> counts
    {'0': 1}
    """
    while True:
        spare = sum(float(curve.frees[counts[name]]) for name, curve in curves.items()) - save
        free = {
            name: curve.steps[counts[name] - 1].cost
            for name, curve in curves.items()
            if counts[name] and curve.frees[counts[name]] - curve.frees[counts[name] - 1] <= spare
        }
        if not free:
            return
        counts[max(free, key=lambda name: free[name])] -= 1


def _most(rooms: Mapping[str, Room], table: Table, scope: Scope, cap: int | None) -> float:
    """The most milliseconds that can be saved with so many heads."""
    free = AdditiveCosts({site.name: np.zeros(site.heads) for room in rooms.values() for site in room.block.sites})
    if scope == "model":
        curves = [curve_of(room, free, table) for room in rooms.values()]
        if cap is None:
            return math.fsum(float(curve.frees[-1]) for curve in curves)
        by_heads = [replace(curve, costs=-curve.frees, frees=curve.heads) for curve in curves]
        counts = cheapest_counts(by_heads, 0, cap) or [0] * len(curves)
        return math.fsum(float(curve.frees[n]) for curve, n in zip(curves, counts, strict=True))
    best = 0.0
    for steps in _levels(rooms, free, scope):
        if cap is None or sum(step.size for step in steps) <= cap:
            best = max(best, _saves(rooms, table, steps))
    return best


def _saves(rooms: Mapping[str, Room], table: Table, steps: Sequence[Step]) -> float:
    left = {name: room.left for name, room in rooms.items()}
    for step in steps:
        left[step.block] = tuple(head for head in left[step.block] if head not in step.heads)
    return math.fsum(
        table.used(room.block, room.left) - table.used(room.block, left[name]) for name, room in rooms.items()
    )
