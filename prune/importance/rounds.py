"""Rounds: remove a few heads, repair, look again – what is measured on a model that still has all heads grows stale."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import find_sites
from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.passes import Passes
from headwise.prune.selection.blocks import Room
from headwise.prune.selection.costs import AdditiveCosts, Costs
from headwise.prune.selection.greedy import greedy
from headwise.prune.selection.keep import Keep
from headwise.prune.selection.reach import rooms_of


def ranks_in_rounds(
    calibration: Calibration, every: int, measure: Callable[[Calibration], Costs], ridge: float
) -> dict[str, np.ndarray]:
    """When each head would go if `every` heads went at a time, and costs were measured anew in between.

    Each round cuts a copy of the model, after least-squares repair of the projections that lose heads, and the next
    round measures that copy. A block's last head (its last group where queries are grouped), and heads of sites that
    cannot be cut, go in the last round at the earliest.

    Args:
        calibration: model and texts; nothing is changed.
        every: heads per round.
        measure: the costs of what a calibration sees.
        ridge: of the repair.

    Returns:
        ranks like those of `removal_ranks`, but from 1.

    Raises:
        BadInput: nothing that goes in one piece is as small as `every`.
    """
    from headwise.prune.compensation.reconstruction import Reconstruct
    from headwise.prune.surgery import cut

    ranks = {name: np.full(site.heads, np.nan) for name, site in calibration.sites.items()}
    now, place, last = calibration, 1, False
    while not last:
        left = sum(len(site.kept) for site in now.sites.values())
        rooms = rooms_of(now.sites, Keep(minimum_per_site=1))
        last = _ends(rooms, left, every)
        if last:
            whole = {name: replace(site, refusal="") for name, site in now.sites.items()}
            rooms = rooms_of(whole, Keep(minimum_per_site=0))
        steps = greedy(rooms, measure(now), left if last else every)
        gone: dict[str, list[int]] = {}
        for step in steps:
            for site in rooms[step.block].block.sites:
                ranks[site.name][list(step.heads)] = place
                gone.setdefault(site.name, []).extend(step.heads)
            place += step.size
        if last:
            break
        if not steps:
            raise BadInput(f"score.recollect: no piece has {every} heads or fewer; choose a larger number, or none")
        # The copy is as the model was when its sums were made, so they serve its repair.
        smaller = replace(now, model=copy.deepcopy(calibration.model) if now is calibration else now.model)
        Reconstruct(correct="none", values="keep", ridge=ridge).repair(smaller, gone)
        cut(smaller.model, gone)
        now = replace(smaller, sites=find_sites(smaller.model), _passes={})
    return ranks


def _ends(rooms: Mapping[str, Room], left: int, every: int) -> bool:
    """Whether the next round is the last: it takes what single heads allow, or no block can lose more and go on."""
    sites = sum(len(room.block.sites) for room in rooms.values())
    return left - every <= sites or not any(room.pieces() for room in rooms.values())


def foretell_rounds(passes: Passes, every: int, measure: Callable[[Passes], None]) -> None:
    """Count the passes of `ranks_in_rounds`, the dense model being measured already.

    Args:
        passes: so far.
        every: heads per round.
        measure: counts those of one measurement.

    >>> from headwise.analysis.sites import Site
    >>> sites = {name: Site(name, "attn", "attn.o", 4, 4, 8, kept=(0, 1, 2, 3)) for name in "01"}
    >>> passes = Passes(sites, texts=8, batches=1, scored=True)
    >>> passes.contexts()
    >>> foretell_rounds(passes, 2, Passes.contexts)
    >>> passes.forward
    3.0
    """
    from headwise.prune.compensation.reconstruction import Reconstruct

    left, rounds = sum(len(site.kept) for site in passes.sites.values()), 1
    rooms = rooms_of(passes.sites, Keep(minimum_per_site=1))
    # Which heads go does not matter here, only how many at a time.
    free = AdditiveCosts({name: np.zeros(site.heads) for name, site in passes.sites.items()})
    while not _ends(rooms, left, every) and (steps := greedy(rooms, free, every)):
        left, rounds = left - sum(step.size for step in steps), rounds + 1
    repair = Reconstruct(correct="none", values="keep")
    if rounds > 1:
        repair.foretell(passes)
        last = passes.anew()
        measure(last)
        between = passes.anew()
        measure(between)
        repair.foretell(between)
        passes.add(between, rounds - 2)
        passes.add(last)
