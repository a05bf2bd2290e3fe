"""Forecast: what a run would remove, and the memory and time it would take, from the configuration alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from headwise.analysis.sites import Site, find_sites
from headwise.prune.checkpoint.skeleton import skeleton
from headwise.prune.forecast.duration import Duration
from headwise.prune.forecast.first_checks import first_checks
from headwise.prune.forecast.needs import Needs, Texts
from headwise.prune.free_memory import free_memory
from headwise.prune.recipe import Recipe, check_against
from headwise.prune.report.formats import size as sized
from headwise.prune.selection import reachable
from headwise.prune.speed.latency import Latency

_DEFAULT_LENGTH, _DEFAULT_TEXTS = 512, 1024
_UNEQUAL = "single heads leave groups of unequal size, whose keys and values are repeated: the model may get larger"
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def forecast(recipe: Recipe, *, trust_remote_code: bool = False) -> dict[str, Any]:
    """Heads that would go, and the memory and time that it would take here.

    Both are estimates: memory by what is held at the same time, time by the operations of all passes over the texts
    and of what follows them, at the speed that this machine multiplies matrices now.

    Args:
        recipe: names the checkpoint.
        trust_remote_code: run code that the checkpoint brings, if its configuration needs any.

    Raises:
        BadInput: if the checkpoint's configuration cannot be read, or the recipe, its texts or its task do not fit it.
    """
    name = str(recipe.model.id)
    model = skeleton(name, revision=recipe.model.revision, trust_remote_code=trust_remote_code)
    sites = find_sites(model)
    table = _table(recipe, sites)
    check_against(recipe, sites, model, table.meter() if table is not None else None)
    checked = first_checks(recipe, model, trust_remote_code=trust_remote_code)
    total = sum(site.heads for site in sites.values())
    width = _BYTES.get(recipe.model.dtype, 0) or _width(model)
    texts = _texts(recipe, model, checked)
    needs = Needs(recipe, model, sites, width, texts)
    duration = Duration(needs)
    memory, seconds, free = needs.memory(), duration.seconds(), free_memory()
    return {
        "model": name, "type": type(model).__name__, "sites": len(sites), "heads": total,
        **checked,
        "budget": _budget(recipe, table),
        # How many heads a share of something else, a time or a drop comes to, the scores decide.
        "heads_removed": None if recipe.remove.metered or recipe.reach is not None else reachable(
            sites, recipe.remove, recipe.scope, recipe.keep, recipe.unit),
        **({"note": _UNEQUAL} if _may_grow(recipe, sites) else {}),
        "cannot_be_cut": {name: site.refusal for name, site in sites.items() if site.refusal},
        "score": recipe.score.kind, "compensate": recipe.compensate.kind,
        "memory": {name: sized(count) for name, count in memory.items()}
        | {"peak_about": sized(needs.peak()), "free_here": None if free is None else sized(free)},
        "bytes": memory | {"peak_about": needs.peak()},
        "time": {"passes": round(duration.passes(), 1), "texts": texts.calibration, "tokens_a_text": round(texts.mean),
                 "seconds_about": round(sum(seconds.values()), 1), "mostly": _mostly(seconds)},
    }  # fmt: skip


def _may_grow(recipe: Recipe, sites: Mapping[str, Site]) -> bool:
    return recipe.unit == "head" and any(1 < site.kv_heads < site.heads for site in sites.values())


def _table(recipe: Recipe, sites: Mapping[str, Site]) -> Latency | None:
    """The latency table that the recipe names; without one, it takes the weights to know times."""
    if recipe.time is None or recipe.reach is None or recipe.reach.table is None:
        return None
    file = recipe.beside(("reach", "table"), recipe.reach.table)
    table, setting = Latency.load(file), {"batch": recipe.time.batch, "length": recipe.time.length, "unit": recipe.unit}
    table.check(sites, setting, f"{file}: the latency table")
    return table


def _budget(recipe: Recipe, table: Latency | None) -> str:
    """What is asked for, in words, and what it depends on.

    >>> _budget(Recipe.load("quickstart"), None)
    '0.33 of the heads'
    """
    time, budget = recipe.time, recipe.remove
    if time is not None:
        known = "times are measured when the run begins" if table is None else f"{table.total:.4g} ms with all heads"
        return f"at most {time.milliseconds:g} ms at {time.where}; {known}"
    amount = getattr(budget, budget.amount)
    asked = f"{amount} heads" if budget.amount == "heads" else f"{amount:g} of the {budget.amount}"
    asked = asked.replace("of the fraction", "of the heads")
    if budget.length is not None:
        asked += f" at {budget.length} tokens"
    if recipe.reach is not None and recipe.reach.drop is not None:
        return f"the most that surely stays below a drop of {recipe.reach.drop:g}, at most {asked}"
    return asked


def _texts(recipe: Recipe, model: nn.Module, checked: Mapping[str, Any]) -> Texts:
    """How many texts and how long: as they are where they are on this machine, else what the recipe says."""
    config: Any = model.config
    positions = getattr(config, "max_position_embeddings", 0) or _DEFAULT_LENGTH
    length = recipe.data.max_length or min(_DEFAULT_LENGTH, positions)
    tokens = checked.get("tokens_a_text") or {"mean": length, "most": length}
    counted = checked["texts"] if isinstance(checked["texts"], dict) else {}
    calibration = counted.get("calibration") or recipe.data.calibration.samples or _DEFAULT_TEXTS
    evaluation = counted.get("evaluation") or getattr(recipe.data.evaluation, "samples", None) or _DEFAULT_TEXTS
    return Texts(calibration, evaluation, tokens["mean"], tokens["most"])


def _mostly(seconds: Mapping[str, float]) -> str:
    """What most of the time goes to.

    >>> _mostly({"start": 1.0, "speed": 6.0, "repair": 3.0})
    'speed 60 %, repair 30 %'
    """
    total = sum(seconds.values())
    largest = sorted(seconds.items(), key=lambda item: -item[1])[:2]
    return ", ".join(f"{name} {value / total:.0%}".replace("%", " %") for name, value in largest)


def _width(model: Any) -> int:
    dtype = getattr(model.config, "dtype", None)
    return torch.finfo(dtype).bits // 8 if isinstance(dtype, torch.dtype) and dtype.is_floating_point else 4
