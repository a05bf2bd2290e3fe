"""The budget of a recipe held against a model: what cannot be reached is said before anything is measured."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site
from headwise.prune.recipe_errors import Mistake, Path
from headwise.prune.selection import Meter, Time, largest_first, metered_reach, reachable, require_piece, timed_reach
from headwise.prune.selection.meters import Table

if TYPE_CHECKING:
    from headwise.prune.recipe import Recipe

log = logging.getLogger("headwise")


def out_of_reach(recipe: Recipe, sites: Mapping[str, Site], model: Any, table: Table | None) -> Iterator[Mistake]:
    """Budgets and results that the keep-rules, or the sites that can be cut, put out of reach.

    Where a result is to be reached, the budget is the most that may go: one piece has to fit it.

    Args:
        recipe: a recipe whose rules fit the sites.
        sites: the model's.
        model: the model; without it only what is counted in heads is looked at.
        table: its latency table; without it a time is not looked at.
    """
    how: dict[str, Any] = {"scope": recipe.scope, "keep": recipe.keep, "unit": recipe.unit}
    of, path = recipe._places.of, ("remove",)
    if recipe.time is not None:
        yield from _too_fast(recipe, recipe.time, sites, table)
    try:
        meter = _meter(recipe, sites, model) if recipe.remove.metered else None
        if recipe.remove.metered and meter is None:
            return
        if recipe.reach is not None:
            require_piece(sites, recipe.remove, meter, **how)
            if meter is not None and recipe.time is None:
                _tell_first(recipe, meter, largest_first(sites, meter, **how) / meter.total)
        elif recipe.remove.metered:
            metered_reach(sites, recipe.remove, meter, **how)
        else:
            reachable(sites, recipe.remove, **how)
    except BadInput as error:
        yield Mistake(path, str(error).removeprefix("remove: "), place=of(path))


def _tell_first(recipe: Recipe, meter: Meter, most: float) -> None:
    """Warn where only some of the pieces that may go first fit the most that may go."""
    bound = float(getattr(recipe.remove, recipe.remove.amount))
    if most > bound + 1e-9:
        log.warning(
            "remove: at most %.4g of the %s may go, and pieces differ: some that may go first come to as much as %.4g in "
            "all. Which goes first, the score decides; if it is one of these, there is no step, and the run ends before "
            "it has a plan",
            bound, meter.name, most,
        )  # fmt: skip


def _meter(recipe: Recipe, sites: Mapping[str, Site], model: Any) -> Meter | None:
    """What the budget is counted with, if that can be known now."""
    from headwise.prune.speed.metering import NeedsWeights, meter_of

    if model is None:
        return None
    try:
        return meter_of(model, sites, recipe.remove, recipe.unit)
    except NeedsWeights as reason:
        log.warning("%s: whether the budget can be met is known when the run begins", reason)
        return None


def _too_fast(recipe: Recipe, time: Time, sites: Mapping[str, Site], table: Table | None) -> Iterator[Mistake]:
    of = recipe._places.of
    if recipe.unit == "head" and any(site.kv_heads < site.heads for site in sites.values()):
        problem = "a time cannot be reached with unit head where queries are grouped; use unit group or even"
        unit: Path = ("unit",)
        yield Mistake(unit, problem, place=of(unit))
    elif table is not None:
        try:
            timed_reach(sites, time, table, recipe.scope, recipe.keep, recipe.unit)
        except BadInput as error:
            yield Mistake(("reach",), str(error).removeprefix("reach: "), place=of(("reach", "milliseconds")))
