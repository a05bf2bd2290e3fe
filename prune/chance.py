"""Chance: how the model does without as many heads, drawn at random, so that a reader sees what the method is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.progress import track
from headwise.prune.deciding import Judge, choose, judged
from headwise.prune.importance.calibration import Calibration
from headwise.prune.importance.random import Random
from headwise.prune.plan import Plan
from headwise.prune.recipe import Recipe
from headwise.prune.selection import Budget
from headwise.prune.tasks import compare

#: How many times heads are drawn, and on how many texts at most each draw is judged.
DRAWS, TEXTS = 5, 256


def by_chance(
    recipe: Recipe, calibration: Calibration, evidence: Evidence, plan: Plan, corpus: Corpus, *, draws: int = DRAWS
) -> dict[str, Any]:
    """The plan against heads drawn at random: as many, by the same scope, unit and keep-rules.

    All are silenced in the dense model and what is left is repaired as the recipe says, each draw by itself, so
    that only the choice of heads differs; nothing is trained again. Up to 256 of the evaluation texts judge.
    Nothing is decided by it.

    Returns:
        Plain data: the metric with `all` heads, with the `plan`'s silenced, and with those of each draw
        (`drawn`), their `mean` and `spread` (standard deviation); `worse`, the draws that the plan beats;
        `n` texts, and `repair`, what made up for the heads. Where outputs are classes, `moved` has their divergence
        from the dense model's (KL, nats), which tells choices apart that cost few answers: of the `plan`, and
        `drawn`. Empty if nothing goes, or as many cannot be drawn.

    >>> callable(by_chance)
    True
    """
    count = sum(len(heads) for heads in plan.remove.values())
    drawn = _draws(recipe, calibration, evidence, count, draws) if count else []
    if not drawn:
        return {}
    fitted, texts = calibration.task, corpus.sample(min(TEXTS, len(corpus)), recipe.seed)
    # Benchmarks have documents of their own instead of the texts.
    fitted = fitted.brief(TEXTS) if hasattr(fitted, "brief") else fitted
    dense = fitted.judge(calibration.model, texts)
    values: list[float] = []
    moved: list[float | None] = []
    judge = Judge(fitted, texts)
    for remove in track([plan.remove, *drawn], label="judging heads drawn at random"):
        outcome, _ = judged(recipe, calibration, remove, judge)
        # Through the comparison: a task without labels has its value only there.
        compared = compare(dense, outcome, resamples=2)
        values.append(compared["cut"]["value"])
        moved.append((compared.get("against_dense") or {}).get("kl"))
    chosen, others = values[0], np.array(values[1:], dtype=np.float64)
    sign = 1 if dense.higher_is_better else -1
    return {
        "all": compare(dense, dense, resamples=2)["dense"]["value"], "plan": chosen, "drawn": values[1:],
        "mean": float(others.mean()), "spread": float(others.std(ddof=1)) if len(others) > 1 else None,
        "worse": int((sign * others < sign * chosen).sum()), "n": len(dense.texts), "heads": count,
        "repair": recipe.compensate.kind,
        **({} if None in moved else {"moved": {"plan": moved[0], "drawn": moved[1:]}}),
    }  # fmt: skip


def _draws(
    recipe: Recipe, calibration: Calibration, evidence: Evidence, count: int, draws: int
) -> list[Mapping[str, Sequence[int]]]:
    found: list[Mapping[str, Sequence[int]]] = []
    for draw in range(draws):
        # Seeds that the recipe's own score does not use: `score: {kind: random}` must not meet itself.
        seeded = replace(calibration, seed=recipe.seed + 1_000_003 * (draw + 1))
        try:
            chosen = choose(recipe, calibration, Random().score(seeded), evidence, Budget(heads=count))
        except BadInput:
            return []
        if sum(len(heads) for heads in chosen.remove.values()) == count:
            found.append(chosen.remove)
    return found
