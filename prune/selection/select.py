"""Selection: from costs, budget and keep-rules to the heads that go, each with its reason."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site
from headwise.prune.selection.blocks import Room, Unit
from headwise.prune.selection.budget import Budget
from headwise.prune.selection.costs import BlockCost, Costs
from headwise.prune.selection.curves import cheapest_counts, curve_of, frees_together, steps_of
from headwise.prune.selection.exchange import exchanged, in_order
from headwise.prune.selection.greedy import Scope, Step, cheapest, greedy
from headwise.prune.selection.keep import Keep
from headwise.prune.selection.metered import metered_quota, metered_reach
from headwise.prune.selection.meters import Meter, Table
from headwise.prune.selection.reach import quota_of, reachable, rooms_of
from headwise.prune.selection.searches import Counts, Exchange, Greedy, Search
from headwise.prune.selection.timed import Time, cap_of, timed, timed_reach


@dataclass(frozen=True)
class Selection:
    """The heads that go and why.

    Attributes:
        remove: original indices by site, those included that an earlier cut took; only sites that lose heads.
        reasons: a sentence for every head: site -> head -> sentence.
        steps: the removals in their order.
        search: how a search by swaps went, as plain data; {} without one.
    """

    remove: dict[str, list[int]]
    reasons: dict[str, dict[int, str]]
    steps: list[Step]
    search: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cost(self) -> float:
        """What all removals cost together, by the score's own reckoning.

        >>> Selection({}, {}, [Step("0", (1,), 0.5, 1), Step("0", (2,), 0.25, 1)]).cost
        0.75
        """
        return float(sum(step.cost for step in self.steps))


def select(
    sites: Mapping[str, Site],
    costs: Costs,
    budget: Budget | Time,
    *,
    scope: Scope = "model",
    keep: Keep | None = None,
    unit: Unit = "group",
    evidence: Any = None,
    score: str = "score",
    notes: Mapping[str, Mapping[int, str]] | None = None,
    meter: Meter | None = None,
    search: Search | None = None,
) -> Selection:
    """Choose the heads that go.

    Args:
        sites: sites of the model, dense or cut.
        costs: what a removal costs; `AdditiveCosts(scores)` for plain scores.
        budget: how much of the original model is to be gone, or how long it may take in the end.
        scope: over the whole model, levelled over sites, or the same number in every site.
        keep: heads, layers, roles and a minimum that stay.
        unit: what goes in one piece where queries are grouped.
        evidence: an `Evidence`; needed by keep-rules about roles.
        score: name of the score, for the reasons.
        notes: what the score has to say about single heads, for the reasons.
        meter: what the budget is counted in, if not in heads; a `Table` for a time.
        search: what improves the greedy removal: `Exchange` by swaps, for scope `model` between blocks, too;
            `Counts` by other numbers of heads per block, for scope `model` (nothing is tried on the model here).

    Raises:
        BadInput: the budget cannot be met, or a keep-rule does not fit.

    >>> import numpy as np
    >>> from headwise.prune.selection.costs import AdditiveCosts
    >>> site = Site("0", "attn", "attn.o", 3, 3, 8, kept=(0, 1, 2))
    >>> select({"0": site}, AdditiveCosts({"0": np.array([3.0, 1.0, 2.0])}), Budget(heads=1)).remove
    {'0': [1]}
    """
    keep = keep or Keep()
    if keep.roles and evidence is None:
        raise BadInput(f"keep.roles names {', '.join(keep.roles)}, but there is no evidence about roles: analyse first")
    rooms, steps, facts = _steps(sites, costs, budget, scope, keep, unit, evidence, meter, search or Greedy())
    chosen = told(sites, rooms, costs, steps, keep.protected(sites, evidence), score, notes or {})
    return replace(chosen, search=facts)


def _steps(
    sites: Mapping[str, Site], costs: Costs, budget: Budget | Time, scope: Scope, keep: Keep, unit: Unit,
    evidence: Any, meter: Meter | None, search: Search,
) -> tuple[dict[str, Room], list[Step], dict[str, Any]]:  # fmt: skip
    """The removals, the rooms as they leave them, and how a search by swaps went."""
    facts: dict[str, Any] = {}
    rooms = rooms_of(sites, keep, unit, evidence)
    amount: float | int
    if isinstance(budget, Time):
        if not isinstance(meter, Table):
            raise BadInput("reach: a time has to be measured on a model; give heads or fraction without one")
        amount = timed_reach(sites, budget, meter, scope, keep, unit, evidence)
        steps = timed(rooms, costs, amount, scope, meter, cap_of(budget, sites, rooms))
    elif budget.metered:
        amount = metered_reach(sites, budget, meter, scope, keep, unit, evidence)
        if meter is not None and scope == "uniform":
            # As many from every block, whatever each frees: an encoder keeps no cache.
            steps = greedy(rooms, costs, math.inf, scope, metered_quota(rooms, meter, amount))
        else:
            steps = greedy(rooms, costs, amount, scope, meter=meter)
    else:
        total = reachable(sites, budget, scope, keep, unit, evidence)
        amount = max(total - sum(room.block.gone for room in rooms.values()), 0)
        steps = greedy(rooms, costs, amount, scope, quota_of(rooms, total, scope) if scope == "uniform" else None)
    if isinstance(search, Exchange):
        rooms = rooms_of(sites, keep, unit, evidence)
        steps, facts = exchanged(rooms, costs, steps, between=scope == "model", swaps=search.swaps, meter=meter)
    elif isinstance(search, Counts) and scope == "model" and not isinstance(budget, Time):
        rooms = rooms_of(sites, keep, unit, evidence)
        steps = _by_counts(rooms, costs, steps, amount, meter)
    return rooms, steps, facts


def _by_counts(
    rooms: Mapping[str, Room], costs: Costs, steps: list[Step], amount: float | int, meter: Meter | None
) -> list[Step]:
    """The numbers of heads that cost least of all that free no less than greedy and no more than the budget."""
    curves = {name: curve_of(room, costs, meter) for name, room in rooms.items()}
    taken = {name: sum(step.block == name for step in steps) for name in rooms}
    cut = [name for name, room in rooms.items() if room.block.gone]
    alone = sum(float(curve.frees[taken[name]]) for name, curve in curves.items())
    least = frees_together(curves, taken, meter, cut)
    # Costs add up over blocks, first cuts in a stack do not: they are taken as greedy makes them.
    found = cheapest_counts(list(curves.values()), alone, amount + alone - least)
    counts = taken if found is None else dict(zip(curves, found, strict=True))
    slack = 1e-9 * meter.total if meter is not None else 0.0
    if not least - slack <= frees_together(curves, counts, meter, cut) <= amount + slack:
        counts = taken
    return in_order(rooms, costs, steps_of(curves, counts))


def told(
    sites: Mapping[str, Site],
    rooms: Mapping[str, Room],
    costs: Costs,
    steps: list[Step],
    protected: Mapping[str, Mapping[int, str]],
    score: str,
    notes: Mapping[str, Mapping[int, str]],
) -> Selection:
    """Removals as a selection, with a sentence for every head; `rooms` are as the removals leave them."""
    return Selection(_removed(rooms), _reasons(sites, rooms, costs, steps, protected, score, notes), steps)


def _removed(rooms: Mapping[str, Room]) -> dict[str, list[int]]:
    return {
        site.name: [head for head in range(site.heads) if head not in room.left]
        for room in rooms.values()
        for site in room.block.sites
        if len(room.left) < site.heads
    }


def _reasons(
    sites: Mapping[str, Site],
    rooms: Mapping[str, Room],
    costs: Costs,
    steps: list[Step],
    protected: Mapping[str, Mapping[int, str]],
    score: str,
    notes: Mapping[str, Mapping[int, str]],
) -> dict[str, dict[int, str]]:
    """A sentence per head."""
    total = sum(step.size for step in steps)
    why: dict[str, dict[int, str]] = {}
    place = 1
    for step in steps:
        together = f" (with {', '.join(map(str, step.heads))} in one piece)" if len(step.heads) > 1 else ""
        for head in step.heads:
            sentence = f"number {place} of {total} to go, by {score}: cost {step.cost:.2g}{together}"
            why.setdefault(step.block, {})[head] = sentence
        place += step.size
    last, lasts = steps[-1].cost if steps else None, {step.block: step.cost for step in steps}
    for name, room in rooms.items():
        state = costs.start(room.block)
        for step in steps:
            if step.block == name:
                state.remove(step.heads)
        found = why.setdefault(name, {})
        for head in range(room.block.heads):
            if head not in found:
                found[head] = _why_kept(head, room, state, protected, score, last, lasts.get(name))
    sentences = {site.name: dict(why[name]) for name, room in rooms.items() for site in room.block.sites}
    for site_name, heads in notes.items():
        for head, note in heads.items():
            sentences[site_name][head] += f"; {note}"
    return {name: dict(sorted(heads.items())) for name, heads in sentences.items()}


def _why_kept(
    head: int,
    room: Room,
    state: BlockCost,
    protected: Mapping[str, Mapping[int, str]],
    score: str,
    last: float | None,
    here: float | None,
) -> str:
    """Why a head stayed, beside the last one that went: of all, or of its own block where that cost no more."""
    if head not in room.block.kept:
        return "gone already: an earlier cut removed it"
    for site in room.block.sites:
        if site.refusal:
            return f"kept: {site.refusal}"
        if head in protected.get(site.name, {}):
            return f"kept: {protected[site.name][head]}"
    free = copy.copy(room)
    free.protected, free.minimum = (), 0
    mates = [heads for heads in free.pieces() if head in heads]
    if room.unit == "group" and mates and set(mates[0]) & set(room.protected):
        others = ", ".join(str(mate) for mate in mates[0] if mate != head)
        return f"kept: it goes only together with {others}, of which one has to stay"
    cost = float(state.costs([mates[0] if room.unit == "group" else (head,)])[0])
    offer = cheapest(free, state)
    if not room.pieces() and last is not None and offer is not None and offer.cost <= last:
        return f"kept: minimum_per_site (cost {cost:.2g})"
    where = ""
    if last is not None and cost < last:  # where each site loses its share, a dearer head of another went
        last, where = here, " in its block"
    limit = ""
    if last is not None:
        limit = f"; the last head removed{where} cost {'just as much' if cost == last else f'{last:.2g}'}"
    return f"kept: removing it next would cost {cost:.2g} by {score}{limit}"
