"""Searching: other numbers of heads per site, each tried on the model itself before the plan is made."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.gates import gated
from headwise.analysis.progress import track
from headwise.prune.compensation.undo import given_back
from headwise.prune.importance import Scores
from headwise.prune.importance.calibration import Calibration
from headwise.prune.recipe import Recipe
from headwise.prune.selection import Budget, Selection, Time, rooms_of
from headwise.prune.selection.blocks import Room, blocks_of
from headwise.prune.selection.curves import Curve, curve_of, frees_together, steps_of
from headwise.prune.selection.exchange import in_order
from headwise.prune.selection.meters import Meter, gone
from headwise.prune.selection.select import told
from headwise.prune.selection.timed import cap_of, put_back
from headwise.prune.speed.timing import Clock
from headwise.prune.tasks.agreement import FittedAgreement
from headwise.prune.tasks.outcome import judging

log = logging.getLogger("headwise")

Counts = dict[str, int]


@dataclass(frozen=True)
class Bounds:
    """What a candidate has to free, in the budget's resource, and how many heads it may take for that.

    Attributes:
        low: the least.
        high: the most; None for a time, where nothing may go that need not.
        heads: the most heads.
        meter: what it is counted in, if not in heads.
        cut: blocks that have lost heads before.
    """

    low: float
    high: float | None
    heads: int | None = None
    meter: Meter | None = None
    cut: tuple[str, ...] = ()

    def met(self, curves: Mapping[str, Curve], counts: Counts) -> Counts | None:
        """The numbers, what is not needed put back, or None if they do not fit.

        >>> Bounds(0.0, 2.0).met({}, {})
        {}
        """
        counts = dict(counts)
        if self.high is None:
            put_back(curves, counts, self.low)
        frees = frees_together(curves, counts, self.meter, self.cut)
        heads = sum(int(curves[name].heads[count]) for name, count in counts.items())
        within = (self.high is None or frees <= self.high) and (self.heads is None or heads <= self.heads)
        return counts if frees >= self.low and within else None


def search(
    recipe: Recipe, calibration: Calibration, scores: Scores, evidence: Evidence, batches: Any, start: Selection,
    budget: Budget | Time, meter: Meter | None, clock: Clock = time.monotonic,
) -> tuple[Selection, dict[str, Any]]:  # fmt: skip
    """The best removal of those tried, and how the search went.

    From the numbers of heads that cost least, one or two units go back in one site and one or two go in another, as
    long as the budget is met. Half of the candidates are the cheapest by the score, half are drawn with the recipe's
    seed. Each is repaired, gated and judged by the mean loss of the task; a better one is where the search goes on.

    Args:
        recipe: its `search` says how long.
        calibration: model and texts that decide; the model is given back as it was.
        scores: what removals cost.
        evidence: what is known about the heads.
        batches: texts that judge candidates and took no part in the scores.
        start: what dynamic programming chose.
        budget: how much is to go.
        meter: what it is counted in, if not in heads.
        clock: tells the time in seconds.

    Returns:
        The selection, and as plain data: `judged` candidates, mean `loss` of `start` and `found`, `moves`, why it
        `stopped`, and whether it is `reproducible` (not if the clock stopped it).

    Raises:
        BadInput: the loss of no candidate is finite.
    """
    if isinstance(calibration.task, FittedAgreement):
        # Its losses need the dense model's word on every text, and it was fitted without these.
        calibration = replace(calibration, task=calibration.task.asked(calibration.model, batches))
    rooms = rooms_of(calibration.sites, recipe.keep, recipe.unit, evidence)
    curves = {name: curve_of(room, scores.costs, meter) for name, room in rooms.items()}
    counts = {name: sum(step.block == name for step in start.steps) for name in rooms}
    cut = tuple(name for name, room in rooms.items() if room.block.gone)
    free = frees_together(curves, counts, meter, cut)
    bounds = _bounds(budget, calibration, curves, free, meter, cap_of(budget, calibration.sites, rooms))
    bounds = replace(bounds, meter=meter, cut=cut)

    def loss(of: Counts) -> float:
        return _loss(recipe, calibration, _removed(rooms, steps_of(curves, of)), batches)

    best, facts = _climbed(recipe, curves, counts, bounds, loss, clock)
    if facts["moves"] == 0:
        return start, facts
    steps = in_order(rooms, scores.costs, steps_of(curves, best))
    protected = recipe.keep.protected(calibration.sites, evidence)
    return told(calibration.sites, rooms, scores.costs, steps, protected, scores.kind, scores.notes), facts


def _climbed(
    recipe: Recipe, curves: Mapping[str, Curve], start: Counts, bounds: Bounds, loss: Callable[[Counts], float],
    clock: Clock,
) -> tuple[Counts, dict[str, Any]]:  # fmt: skip
    """Seeded local search: the first better neighbour is where it goes on."""
    rng, began, limit = np.random.default_rng(recipe.seed), clock(), recipe.search.seconds
    best, least = start, loss(start)
    facts: dict[str, Any] = {"kind": "counts", "judged": 1, "start": least, "found": least, "moves": 0}
    seen, around = {tuple(start.values())}, None
    stopped = "evaluations"
    for _ in track(range(recipe.search.evaluations - 1), label="Trying other numbers of heads"):
        if limit is not None and clock() - began >= limit:
            stopped = "seconds"
            break
        if around is None:
            around = _neighbours(curves, best, bounds)
        near = [counts for counts in around if tuple(counts.values()) not in seen]
        if not near:
            stopped = "every neighbour was tried"
            break
        tried = near[0] if rng.random() < 0.5 else near[int(rng.integers(len(near)))]
        seen.add(tuple(tried.values()))
        found = loss(tried)
        facts["judged"] += 1
        if found < least or not np.isfinite(least):
            best, least, around = tried, found, None
            facts["moves"] += 1
    if not np.isfinite(least):
        raise BadInput(
            "search: the loss of no candidate is finite on the selection part; choose another task or search"
        )
    if stopped == "seconds":
        log.warning("the search was stopped by the clock: the same recipe may give another plan")
    return best, {**facts, "found": least, "stopped": stopped, "reproducible": stopped != "seconds"}


def _neighbours(curves: Mapping[str, Curve], counts: Counts, bounds: Bounds) -> list[Counts]:
    """Numbers one move away that meet the budget, the cheapest by the score first."""
    found: dict[tuple[int, ...], Counts] = {}
    for back in curves:
        for out in curves:
            for less, more in product((1, 2), repeat=2):
                moved = {**counts, back: counts[back] - less, out: counts[out] + more}
                if back != out and moved[back] >= 0 and moved[out] < len(curves[out].costs):
                    met = bounds.met(curves, moved)
                    if met is not None and met != counts:
                        found[tuple(met.values())] = met

    def cost(of: Counts) -> float:
        return sum(float(curves[name].costs[count]) for name, count in of.items())

    return sorted(found.values(), key=cost)


def _bounds(
    budget: Budget | Time, calibration: Calibration, curves: Mapping[str, Curve], frees: float, meter: Meter | None,
    cap: int | None,
) -> Bounds:  # fmt: skip
    if isinstance(budget, Time):
        total = float(meter.total) if meter is not None else 0.0
        return Bounds(max(total - budget.milliseconds, 0.0) - 1e-9 * total, None, cap)
    if meter is None:
        return Bounds(frees, frees)
    amount = float(getattr(budget, budget.amount)) * meter.total - gone(meter, blocks_of(calibration.sites))
    units = [float(step) for curve in curves.values() for step in np.diff(curve.frees) if step > 0]
    slack = 1e-9 * meter.total
    # From below by less than the smallest piece, as the budget is met without a search.
    return Bounds(min(frees - slack, amount - min(units, default=0.0) + slack), max(amount, frees) + slack)


def _removed(rooms: Mapping[str, Room], gone: Mapping[str, list[tuple[int, ...]]]) -> dict[str, list[int]]:
    """Heads by site when these units go, those included that an earlier cut took."""
    left = {name: set(room.left).difference(*gone[name]) for name, room in rooms.items()}
    return {
        site.name: [head for head in range(site.heads) if head not in left[name]]
        for name, room in rooms.items()
        for site in room.block.sites
        if len(left[name]) < site.heads
    }


def _loss(recipe: Recipe, calibration: Calibration, remove: Mapping[str, list[int]], batches: Any) -> float:
    """Mean loss of the gated and repaired model; the model is given back as it was."""
    model, total, texts = calibration.model, 0.0, 0
    with given_back(model, calibration.sites):
        recipe.compensate.repair(calibration, remove)
        with gated(model, remove), judging(model):
            for batch in batches:
                found = calibration.task.losses(model, batch).double()
                total, texts = total + float(found.sum()), texts + len(found)
    return total / max(texts, 1)
