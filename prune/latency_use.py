"""Using a latency table: the one of a recipe, and what was forecast with it beside what was measured in the end."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from headwise.analysis.sites import Site
from headwise.prune.opening import Opened
from headwise.prune.plan import Plan
from headwise.prune.recipe import Recipe, check_against
from headwise.prune.speed.inputs import inputs_to_time
from headwise.prune.speed.latency import Latency
from headwise.prune.speed.latency_taking import latency_table, setting_of
from headwise.prune.speed.operations import operations
from headwise.prune.speed.quiet import ready
from headwise.prune.speed.timing import measure, row_of, synchroniser

#: What the table is called in a run's folder, beside the recipe.
TABLE = "latency.json"


def latency_of(recipe: Recipe, opened: Opened, sites: Mapping[str, Site], saved: Path | None = None) -> Latency | None:
    """The latency table that a recipe decides with, its budget checked; None if it reaches for no time.

    The table is the one of an interrupted run, or the recipe's, or the one kept from last time, or it is taken now.

    Args:
        recipe: says the time.
        opened: the checkpoint.
        sites: its sites.
        saved: where an interrupted run has left its table, if it has.

    Raises:
        BadInput: the table is of something else.
        RecipeError: the time cannot be reached.
    """
    if recipe.time is None or recipe.reach is None:
        return None
    setting = setting_of(opened.model, opened.facts["hash"], recipe.time.batch, recipe.time.length, recipe.unit)
    file = recipe.reach.table and recipe.beside(("reach", "table"), recipe.reach.table)
    if saved is not None and saved.exists():
        file = saved
    if file:
        table = Latency.load(file)
    else:
        grid = recipe.speed
        table = latency_table(opened.model, sites, setting, rounds=grid.rounds, seconds=grid.seconds, seed=recipe.seed)
    table.check(sites, setting, f"{file}: the latency table" if file else "the latency table")
    check_against(recipe, sites, opened.model, table.meter())
    return table


def with_table(recipe: Recipe) -> Recipe:
    """The recipe as it stands in a run's folder: repeated from there, it takes the table that lies beside it.

    >>> with_table(Recipe.load("quickstart", ["reach={milliseconds: 12}"])).reach.table
    'latency.json'
    """
    if recipe.time is None or recipe.reach is None:
        return recipe
    return recipe.model_copy(update={"reach": recipe.reach.model_copy(update={"table": TABLE})})


def beside_forecast(
    speed: dict[str, Any], recipe: Recipe, plan: Plan, dense: nn.Module, smaller: nn.Module
) -> dict[str, Any]:
    """The measured speed, with the forecast of the latency table beside it where the plan has one.

    Adds `forecast`: `asked`, what the table said the model takes `now` and `then`, and the `measured` median with
    its quartiles, in milliseconds; `kept`, whether the measured median is within what was asked. A setting that the
    grid lacks is timed and joins the rows.
    """
    said = plan.expected.get("milliseconds")
    if recipe.time is None or not isinstance(said, Mapping):
        return speed
    here = (recipe.time.batch, recipe.time.length)
    row = next((row for row in speed["rows"] if (row["batch"], row["length"]) == here), None)
    if row is None:
        row = {"batch": here[0], "length": here[1], **_timed(recipe, dense, smaller)}
        speed["rows"] = sorted([*speed["rows"], row], key=lambda row: (row["batch"], row["length"]))
    measured, asked = row["cut_ms"], recipe.time.milliseconds
    kept = measured["median"] <= asked
    note = (
        f"{recipe.time.where}: at most {asked:.4g} ms were asked, the latency table forecast {said['then']:.4g} ms, "
        f"measured are {measured['median']:.4g} ms ({measured['low']:.4g} to {measured['high']:.4g} in the middle half "
        f"of the rounds){'' if kept else ', more than asked'}; with all heads it said {said['now']:.4g} ms, measured "
        f"are {row['dense_ms']['median']:.4g} ms"
    )
    forecast = {"batch": here[0], "length": here[1], "asked": asked, **said, "measured": measured, "kept": kept}
    return {**speed, "forecast": forecast, "notes": [*speed["notes"], note]}


def _timed(recipe: Recipe, dense: nn.Module, smaller: nn.Module) -> dict[str, Any]:
    time = recipe.time
    inputs = inputs_to_time(dense, time.batch if time else 1, time.length if time else 1, recipe.seed)
    rng = np.random.default_rng(recipe.seed)
    with ready(dense), ready(smaller):
        counted = [operations(model, inputs) for model in (dense, smaller)]
        times = measure(
            partial(dense, **inputs), partial(smaller, **inputs), synchroniser(dense), recipe.speed.rounds,
            recipe.speed.seconds, rng,
        )  # fmt: skip
    return row_of(times, counted, recipe.seed)
