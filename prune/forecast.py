"""Forecast: what a run would remove, and the memory and time it would take, from the configuration alone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from headwise.analysis.sites import Site, find_sites
from headwise.prune.first_checks import first_checks
from headwise.prune.latency import Latency
from headwise.prune.recipe import Recipe, check_against
from headwise.prune.report.formats import size as sized
from headwise.prune.selection import reachable
from headwise.prune.skeleton import skeleton

_DEFAULT_LENGTH = 512
_UNEQUAL = "single heads leave groups of unequal size, whose keys and values are repeated: the model may get larger"
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def forecast(recipe: Recipe, *, trust_remote_code: bool = False) -> dict[str, Any]:
    """Heads that would go, and the memory and time that it would take here.

    The time is an estimate: operations of all passes over the texts, at the speed that this machine
    multiplies matrices; loading and saving come on top.

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
    parameters = sum(p.numel() for p in model.parameters())
    length = recipe.data.max_length or min(
        _DEFAULT_LENGTH, getattr(model.config, "max_position_embeddings", 0) or _DEFAULT_LENGTH
    )
    samples = recipe.data.calibration.samples
    passes, operations = _operations(recipe, model, length, samples or 1024, total)
    speed = _operations_per_second()
    width = _BYTES.get(recipe.model.dtype, 0) or _width(model)
    batch = recipe.data.batch_size
    memory = {
        "weights": parameters * width,
        # The dense and the cut model stand side by side for the proof and the comparison of speed.
        "weights_of_both_models": 2 * parameters * width,
        # The proof runs both in float32, and keeps what they were: nothing more if that is what they are.
        "proof_in_float32": 2 * parameters * (width + 4 if width < 4 else width),
        "maps_of_one_batch": sum(site.heads for site in sites.values()) * batch * length * length * 4,
        "moments_for_repair": sum((site.heads * site.head_dim) ** 2 * 2 * 8 for site in sites.values()),
    }
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
        "memory": {name: sized(count) for name, count in memory.items()} | {"peak_about": sized(_peak(memory))},
        "bytes": memory | {"peak_about": _peak(memory)},
        "time": {"passes": round(passes, 1), "texts": samples or "all", "tokens_a_text": length,
                 "seconds_about": round(operations / speed, 1), "operations_per_second": f"{speed:.2g}"},
    }  # fmt: skip


def _may_grow(recipe: Recipe, sites: Mapping[str, Site]) -> bool:
    return recipe.unit == "head" and any(1 < site.kv_heads < site.heads for site in sites.values())


def _table(recipe: Recipe, sites: Mapping[str, Site]) -> Latency | None:
    """The latency table that the recipe names; without one, it takes the weights to know times."""
    if recipe.time is None or recipe.reach is None or recipe.reach.table is None:
        return None
    table = Latency.load(recipe.beside(("reach", "table"), recipe.reach.table))
    table.check(sites, {"batch": recipe.time.batch, "length": recipe.time.length, "unit": recipe.unit})
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


def _peak(memory: dict[str, int]) -> int:
    analysed = memory["weights"] + memory["moments_for_repair"] + 2 * memory["maps_of_one_batch"]
    return max(analysed, memory["proof_in_float32"] + memory["moments_for_repair"])


def _operations(recipe: Recipe, model: nn.Module, length: int, samples: int, heads: int) -> tuple[float, float]:
    """Passes over the calibration texts (backward counts two forward ones) and their operations."""
    score = recipe.score
    backward = float(getattr(score, "passes", 1)) + heads * float(getattr(score, "passes_per_head", 0)) / 3
    backward += float(getattr(recipe.compensate, "passes", 0))
    passes = 1 + 3 * backward + 2  # evidence; score and repair; two models judged
    if recipe.search.kind == "counts":
        passes += 0.2 * recipe.search.evaluations  # on a fifth of the texts
    parameters = sum(p.numel() for n, p in model.named_parameters() if "embed" not in n)
    return passes, passes * samples * length * 2.0 * parameters


def _operations_per_second(size: int = 1024) -> float:
    matrix = torch.ones(size, size)
    matrix @ matrix
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        matrix @ matrix
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best


def _width(model: Any) -> int:
    dtype = getattr(model.config, "dtype", None)
    return torch.finfo(dtype).bits // 8 if isinstance(dtype, torch.dtype) and dtype.is_floating_point else 4
