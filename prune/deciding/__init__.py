"""Deciding: from a recipe and what was measured to the plan, complete before a weight changes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.gates import gated
from headwise.analysis.progress import track
from headwise.prune.compensation.undo import given_back
from headwise.prune.deciding.searching import search
from headwise.prune.deciding.stability import chosen_again, even, stability
from headwise.prune.folder.stages import Undecided
from headwise.prune.importance import Scores
from headwise.prune.importance.calibration import Calibration
from headwise.prune.plan import Plan
from headwise.prune.recipe import Recipe
from headwise.prune.selection import Budget, Meter, Selection, Time, blocks_of, select
from headwise.prune.selection.costs import Costs
from headwise.prune.selection.reach import rooms_of
from headwise.prune.selection.searches import Greedy
from headwise.prune.speed.latency import Latency
from headwise.prune.speed.metering import share_gone
from headwise.prune.tasks import Outcome, compare

log = logging.getLogger("headwise")


@dataclass(frozen=True)
class Judge:
    """What candidates of a search are judged by: texts that neither calibrate nor evaluate.

    Attributes:
        fitted: the task, made ready on the dense model.
        corpus: the selection part.
        batches: the same texts as batches, for losses; needed by `search: {kind: counts}`.
    """

    fitted: Any
    corpus: Corpus
    batches: Any = None


def decide(
    recipe: Recipe, calibration: Calibration, evidence: Evidence, made: Mapping[str, Any], judge: Judge | None = None,
    latency: Latency | None = None, scores: Scores | None = None,
) -> Plan:  # fmt: skip
    """The plan of a recipe: what its budget removes, or the most that stays under its drop, or the least for a time.

    Args:
        recipe: the recipe, checked against the model.
        calibration: model and texts that decide.
        evidence: what is known about the heads.
        made: the run's environment.
        judge: needed if the recipe tries candidates.
        latency: needed if the recipe says `reach: {milliseconds: …}`.
        scores: what the recipe's score says, if it is known already.

    Raises:
        Undecided: the budget cannot be met, or nothing stays under the drop.
    """
    try:
        plan = _decided(recipe, calibration, evidence, made, judge, latency, scores)
    except BadInput as error:
        raise Undecided(str(error)) from error
    alike = plan.made_with["stability"].get("even", 0)
    if alike:
        log.warning(
            "score %s: %d of the heads that stay score exactly as one that goes: between these it decided nothing",
            recipe.score.kind, alike,
        )  # fmt: skip
    return plan


def _decided(
    recipe: Recipe, calibration: Calibration, evidence: Evidence, made: Mapping[str, Any], judge: Judge | None,
    latency: Latency | None, scores: Scores | None,
) -> Plan:  # fmt: skip
    recipe.keep.tell_unmet(calibration.sites, evidence)
    scores = scores or recipe.score.score(calibration)
    if recipe.searched and judge is None:
        raise BadInput("there are no texts to judge candidates on; give more calibration texts")
    if recipe.reach is not None and recipe.reach.drop is not None and judge is not None:
        chosen, path = _most_below(recipe, calibration, scores, evidence, judge)
        count = Budget(heads=sum(map(len, chosen.remove.values())))
        stable = steadiness(recipe, calibration, scores, evidence, count)
        return plan_of(recipe, chosen, scores, made, {"reach": path}, stable=stable)
    budget = recipe.time or recipe.remove
    chosen = choose(recipe, calibration, scores, evidence, budget, latency)
    more: dict[str, Any] = {}
    if recipe.searched and judge is not None:
        meter = _meter(recipe, calibration, budget, latency)
        chosen, found = search(recipe, calibration, scores, evidence, judge.batches, chosen, budget, meter)
        more["search"] = found
    more = foreseen(recipe, calibration, chosen, budget, latency) | more
    stable = steadiness(recipe, calibration, scores, evidence, budget, latency)
    return plan_of(recipe, chosen, scores, made, more, budget, stable)


def steadiness(
    recipe: Recipe, calibration: Calibration, scores: Scores, evidence: Evidence, budget: Budget | Time,
    latency: Latency | None = None, ranks: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """How other texts would have ranked the heads (`ranks`, if that is known already), and `again`: what they would choose.

    A search that goes on from the greedy removal is left out: it would have to be made as often again.
    """
    sites, greedy = calibration.sites, recipe.model_copy(update={"search": Greedy()})

    def choose_by(costs: Costs) -> dict[str, list[int]]:
        found = Scores(scores.kind, dict(scores), costs)
        return choose(greedy, calibration, found, evidence, budget, latency).remove

    rooms = rooms_of(sites, recipe.keep, recipe.unit, evidence).values()
    free = sum(len({*room.left} - {*room.protected}) * len(room.block.sites) for room in rooms if room.pieces())
    ranks = ranks or stability(scores.kind, scores, scores.resampled, seed=recipe.seed)
    return {**ranks, "again": chosen_again(scores, sites, choose_by, free)}


def choose(
    recipe: Recipe, calibration: Calibration, scores: Scores, evidence: Evidence, budget: Budget | Time,
    latency: Latency | None = None,
) -> Selection:  # fmt: skip
    """What a budget removes by the recipe's scope, unit and keep-rules; nothing is tried on the model.

    Raises:
        BadInput: the budget cannot be met.
    """
    return select(
        calibration.sites, scores.costs, budget, scope=recipe.scope, keep=recipe.keep, unit=recipe.unit,
        evidence=evidence, score=scores.kind, notes=scores.notes, search=recipe.search,
        meter=_meter(recipe, calibration, budget, latency),
    )  # fmt: skip


def _meter(recipe: Recipe, calibration: Calibration, budget: Budget | Time, latency: Latency | None) -> Meter | None:
    if isinstance(budget, Time):
        return latency.meter() if latency is not None else None
    meter: Meter | None = calibration.meter(budget, recipe.unit)
    return meter


def foreseen(
    recipe: Recipe, calibration: Calibration, chosen: Selection, budget: Budget | Time, latency: Latency | None = None
) -> dict[str, Any]:
    """What the removal comes to in the budget's own resource: the share of the dense model, or milliseconds.

    `milliseconds` is a forecast by the latency table: what the model takes as it is (`now`) and without the heads
    (`then`), and the largest part by which the table misses what was timed (`off`).
    """
    meter = _meter(recipe, calibration, budget, latency)
    if meter is None:
        return {}
    if isinstance(budget, Budget):
        return {meter.name: share_gone(calibration.model, budget, chosen.remove, meter.total)}
    blocks = blocks_of(calibration.sites)
    left = {name: [h for h in b.kept if h not in chosen.remove.get(name, ())] for name, b in blocks.items()}
    frees = sum(meter.used(block, block.kept) - meter.used(block, left[name]) for name, block in blocks.items())
    facts = {} if latency is None else {"off": latency.off, "steady": latency.steady}
    return {"milliseconds": {"now": meter.total, "then": meter.total - frees, **facts}}


def plan_of(
    recipe: Recipe,
    chosen: Selection,
    scores: Scores,
    made: Mapping[str, Any],
    more: Mapping[str, Any] | None = None,
    budget: Budget | Time | None = None,
    stable: Mapping[str, Any] | None = None,
) -> Plan:
    """A selection as the file that one reads and edits; `stable` says how other texts would have decided."""
    values = {site: [None if v != v else float(v) for v in found] for site, found in scores.items()}
    alike = even(scores, chosen.remove)
    firm = {**(stable or {}), **({"even": alike} if alike else {})}
    asked = (budget or recipe.remove).model_dump(exclude_none=True)
    if recipe.reach is not None and recipe.reach.drop is not None:
        asked = {"drop": recipe.reach.drop, **asked}
    return Plan(
        model=str(made["model"]["id"]), remove=chosen.remove, reasons=chosen.reasons, score=values,
        budget={**asked, "scope": recipe.scope, "unit": recipe.unit,
                "search": recipe.search.model_dump(exclude_none=True)},
        expected={"cost": chosen.cost, "heads": sum(len(heads) for heads in chosen.remove.values()),
                  **({"search": dict(chosen.search)} if chosen.search else {}), **(more or {})},
        made_with={"score": recipe.score.model_dump(mode="json"), "seed": recipe.seed, "versions": made["versions"],
                   "calibration": made["texts"]["calibration"], "stability": firm},
    )  # fmt: skip


def judged(
    recipe: Recipe, calibration: Calibration, remove: Mapping[str, Sequence[int]], judge: Judge
) -> tuple[Outcome, dict[str, Any]]:
    """How the gated and repaired model does, and what the repair brought; the model is given back as it was."""
    with given_back(calibration.model, calibration.sites):
        repair = recipe.compensate.repair(calibration, remove)
        with gated(calibration.model, remove):
            return judge.fitted.judge(calibration.model, judge.corpus), repair


def _most_below(
    recipe: Recipe, calibration: Calibration, scores: Scores, evidence: Evidence, judge: Judge
) -> tuple[Selection, list[dict[str, Any]]]:
    """The largest removal before the first whose drop the data cannot keep below the limit.

    A fixed sequence from small to large that ends at the first failure: the error rate is that of one test,
    whatever the number of steps, and nothing is assumed about how the drop grows (Maurer et al., 1995).
    """
    limit = recipe.reach.drop if recipe.reach is not None else 0.0
    dense = judge.fitted.judge(calibration.model, judge.corpus)
    best: Selection | None = None
    path: list[dict[str, Any]] = []
    steps = recipe.ladder(calibration.sites, evidence)
    for count in track(steps, total=len(steps), label="Removing more and more"):
        chosen = choose(recipe, calibration, scores, evidence, Budget(heads=count))
        over = _over(recipe, calibration, chosen)
        if over and not path:
            raise BadInput(
                f"reach: there is no first step: the first that the score gives up ({count}, earlier cuts included) come to "
                f"{over}; allow more, or keep these heads"
            )
        if over:
            break
        outcome, _ = judged(recipe, calibration, chosen.remove, judge)
        found = compare(dense, outcome, seed=recipe.seed)
        passed = found["upper"] is not None and found["upper"] <= limit
        path.append({"heads": count, "drop": found["drop"], "upper": found["upper"], "passed": passed})
        if not passed:
            break
        best = chosen
    if best is None:
        first = next(_told(path), "no step is possible under keep and remove")
        raise BadInput(
            f"reach: no removal is sure to stay below a drop of {limit:g} on the {len(judge.corpus)} texts that judge "
            f"candidates: {first}; allow a larger drop, or give more calibration texts (a fifth of them judges)"
        )
    return best, path


def _over(recipe: Recipe, calibration: Calibration, chosen: Selection) -> str:
    """How a removal is more than `remove` allows where that is not counted in heads; "" if it is not."""
    for name, share in foreseen(recipe, calibration, chosen, recipe.remove).items():
        most = float(getattr(recipe.remove, name))
        if share > most + 1e-9:
            return f"{share:.4g} of the {name}, and remove allows {most:.4g}"
    return ""


def _told(path: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for step in path:
        upper = "unknown" if step["upper"] is None else f"{step['upper']:.3g}"
        yield f"with {step['heads']} heads the drop may be {upper}"
