"""Sweep: one greedy path walked once, every budget on it judged, the good ones cut and timed."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from headwise.analysis.batching import batches
from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.prune.checkpoint import save
from headwise.prune.compensation.undo import given_back
from headwise.prune.deciding import decide, plan_of
from headwise.prune.environment import unchanged
from headwise.prune.folder import check_place, settled
from headwise.prune.growth import growth
from headwise.prune.importance import Scores
from headwise.prune.judging import Errand, Judging, Removal, side_by_side
from headwise.prune.plan import Plan
from headwise.prune.preparing import Prepared, prepare
from headwise.prune.proof import prove, require
from headwise.prune.recipe import Recipe
from headwise.prune.selection import Budget, reachable, walk
from headwise.prune.speed import compare_speed
from headwise.prune.stability import stability
from headwise.prune.stages import Stages
from headwise.prune.surgery import cut

log = logging.getLogger("headwise")

#: Which budgets are cut and timed: those that no other beats, every one, none, or these shares.
Cut = Literal["front", "all", "none"] | Sequence[float]


@dataclass(frozen=True)
class Point:
    """One budget of a sweep.

    Attributes:
        fraction: share of the heads that was to go.
        heads: heads that go.
        folder: its run folder.
        value: of the task's metric without the heads, gated and repaired.
        drop: in the task's metric, on the evaluation texts.
        low: lower end of the drop's interval.
        high: upper end.
        upper: what the data cannot exclude as the drop.
        front: whether no other budget removes as much at a smaller drop.
        chosen: whether it was cut and timed.
    """

    fraction: float
    heads: int
    folder: Path
    value: float | None
    drop: float
    low: float | None
    high: float | None
    upper: float | None
    front: bool = False
    chosen: bool = False


def sweep(
    recipe: Recipe,
    fractions: Sequence[float],
    target: Path,
    *,
    which: Cut = "front",
    jobs: int = 1,
    overwrite: bool = False,
    resume: bool = False,
    device: str | None = None,
    trust_remote_code: bool = False,
) -> list[Point]:
    """Judge a recipe at several budgets and write a run folder for each, and a page that compares all.

    Scores are measured once and their greedy path is walked once; a budget takes its beginning. Where a method's
    selections do not hold one another (a search beyond greedy, trained gates), each budget is decided by itself, and
    the page says so. Every budget is repaired, gated and judged on the evaluation texts; those chosen are cut,
    proven, timed and saved. Nothing is trained after a cut here, whatever the recipe says of `recover`.

    Args:
        recipe: its `remove` is left out of account.
        fractions: shares of the heads to remove.
        target: folder of the sweep.
        which: budgets to cut and time.
        jobs: processes that judge budgets at a time; the numbers do not depend on it.
        overwrite: replace an existing folder.
        resume: continue an interrupted sweep, at the next budget.
        device: where to run.
        trust_remote_code: run code that the checkpoint brings.

    Raises:
        BadInput: a budget cannot be met; or model, texts, recipe or folder do not fit.
        ProofFailed: gate and cut disagree.
    """
    shares = _asked(recipe, fractions, which, jobs)
    check_place(settled(target), recipe.model.id)
    with Stages(target, overwrite=overwrite, resume=resume) as stages:
        stages.text("recipe.yaml", recipe.resolved_yaml)
        first, *others = (_at(recipe, share) for share in shares)
        ready = prepare(
            first, device=device, trust_remote_code=trust_remote_code, also=others,
            look=lambda make: stages.saved("evidence", make, Evidence),
        )  # fmt: skip
        made = stages.json("environment.json", lambda: ready.made)
        unchanged(made, ready.made)
        swept = _Sweep(recipe, ready, stages, shares, made)
        plans = swept.plans()
        errand = Errand(
            first.resolved_yaml(), stages.work / "evidence", device, trust_remote_code, torch.get_num_threads()
        )
        swept.judge(plans, errand, jobs)
        points = _chosen([swept.point(share, plans[share]) for share in shares], which)
        for point in points:
            if point.chosen:
                swept.cut(point, plans[point.fraction])
        told = {"schema": 1, "path": swept.path, "points": [asdict(p) | {"folder": str(p.folder)} for p in points]}
        stages.replace_json("sweep.json", told)
        _draw(stages.work, points)
    return [replace(point, folder=target / point.folder) for point in points]


def _asked(recipe: Recipe, fractions: Sequence[float], which: Cut, jobs: int) -> list[float]:
    """The budgets, small to large.

    Raises:
        BadInput: what was asked for makes no sense.
    """
    shares = sorted(set(fractions))
    if not shares or not all(0 < share < 1 for share in shares):
        raise BadInput(f"budgets: got {', '.join(map(str, fractions)) or 'none'}; give shares of the heads, as 0.1,0.2")
    if not isinstance(which, str) and not set(which) <= set(shares):
        strange = ", ".join(f"{share:g}" for share in which if share not in shares)
        raise BadInput(f"cut: {strange} is none of the budgets {', '.join(f'{share:g}' for share in shares)}")
    if jobs < 1:
        raise BadInput(f"jobs: got {jobs}, expected at least 1")
    if recipe.reach is not None:
        raise BadInput("a sweep tries budgets one by one: take `reach` out of the recipe")
    if recipe.recover.kind != "none":
        log.warning(
            "recover: %s is left out: a sweep compares budgets before any training. Train a budget that you choose by "
            "`headwise prune` with the same recipe and options, and --set remove.fraction=%g (or another of %s)",
            recipe.recover.kind, shares[-1], ", ".join(f"{share:g}" for share in shares),
        )  # fmt: skip
    return shares


def _at(recipe: Recipe, share: float) -> Recipe:
    """The recipe at a budget; gates that are trained for a number of heads are trained for this one."""
    change: dict[str, Any] = {"remove": Budget(fraction=share)}
    if _aimed(recipe):
        change["score"] = recipe.score.model_copy(update={"keep": 1 - share, "heads": None})
    return recipe.model_copy(update=change)


def _aimed(recipe: Recipe) -> bool:
    """Whether the score is trained for a number of heads, and so has to be trained for every budget."""
    score = recipe.score
    return score.kind == "gates" and (score.form == "subset" or score.keep is not None or score.heads is not None)


def not_nested(recipe: Recipe) -> str:
    """Why the removals of a smaller budget are no beginning of a larger one's; empty if they are.

    >>> not_nested(Recipe.load("quickstart"))
    ''
    """
    if _aimed(recipe):
        return "gates are trained for the number of heads that stay"
    return "" if recipe.search.kind == "greedy" else f"search {recipe.search.kind} may take back what fewer heads lost"


class _Sweep:
    """The path, and what is known of each budget on it."""

    def __init__(
        self, recipe: Recipe, ready: Prepared, stages: Stages, shares: Sequence[float], made: Mapping[str, Any]
    ) -> None:
        self.recipe, self.ready, self.stages, self.shares, self.made = recipe, ready, stages, shares, made
        self.why = not_nested(recipe)
        how = f"each budget decided by itself: {self.why}" if self.why else "one greedy path, walked once"
        self.path = {"nested": not self.why, "how": how}

    def plans(self) -> dict[float, Plan]:
        """Every budget's plan; nothing is scored if an interrupted sweep left them all."""
        missing = [share for share in self.shares if not (self._folder(share) / "plan.json").exists()]
        if self.why and missing:
            log.warning("%s", self.path["how"])
        for share, plan in self._decided(missing) if missing else ():
            self._keep(share, plan)
        found = {share: Plan.load(self._folder(share) / "plan.json") for share in self.shares}
        for share, plan in found.items():
            self._describe(share, plan)
            more = growth(self.ready.opened.model, self.ready.calibration.sites, plan.remove)
            if more:
                log.warning("budget %g: %s", share, more)
        return found

    def _keep(self, share: float, plan: Plan) -> None:
        self.stages.saved(f"{_name(share)}/plan.json", lambda: plan, Plan)

    def _describe(self, share: float, plan: Plan) -> None:
        """The files that make a budget's folder a run's."""
        self.stages.text(f"{_name(share)}/recipe.yaml", _at(self.recipe, share).resolved_yaml)
        self.stages.json(f"{_name(share)}/environment.json", lambda: self.made)
        self.stages.json(f"{_name(share)}/stability.json", lambda: plan.made_with["stability"])

    def _decided(self, shares: Sequence[float]) -> Iterator[tuple[float, Plan]]:
        recipe, ready = self.recipe, self.ready
        if _aimed(recipe):
            for share in shares:
                yield share, decide(_at(recipe, share), ready.calibration, ready.evidence, self.made, ready.judge)
            return
        scores: Scores = recipe.score.score(ready.calibration)
        if self.why:
            for share in shares:
                at = _at(recipe, share)
                yield share, decide(at, ready.calibration, ready.evidence, self.made, ready.judge, scores=scores)
            return
        stable = stability(scores.kind, scores, scores.resampled, seed=recipe.seed)
        how: dict[str, Any] = {"scope": recipe.scope, "keep": recipe.keep, "unit": recipe.unit}
        how["evidence"] = ready.evidence
        sites = ready.calibration.sites
        path = walk(sites, scores.costs, Budget(fraction=max(shares)), **how)
        for share in shares:
            budget = Budget(fraction=share)
            chosen = path.beginning(reachable(sites, budget, **how), scores.kind, scores.notes)
            yield share, plan_of(recipe, chosen, scores, self.made, budget=budget, stable=stable)

    def judge(self, plans: Mapping[float, Plan], errand: Errand, jobs: int) -> None:
        """Judge every budget that is not judged yet."""
        todo = {s: plan.remove for s, plan in plans.items() if not (self._folder(s) / "accuracy.json").exists()}
        for name, found in self._judged({_name(share): remove for share, remove in todo.items()}, errand, jobs):
            self.stages.replace_json(f"{name}/compensation.json", found["compensation"])
            # Last: where it is, the budget is judged.
            self.stages.replace_json(f"{name}/accuracy.json", found["accuracy"])

    def _judged(self, todo: Mapping[str, Removal], errand: Errand, jobs: int) -> Iterator[tuple[str, dict[str, Any]]]:
        if jobs > 1 and len(todo) > 1:
            yield from side_by_side(errand, todo, jobs)
            return
        judging = Judging(self.recipe, self.ready)
        for name, remove in todo.items():
            yield name, judging(remove)

    def point(self, share: float, plan: Plan) -> Point:
        """What came out at a budget."""
        accuracy = self.stages.json(f"{_name(share)}/accuracy.json", dict)
        low, high = accuracy.get("interval") or (None, None)
        drop, upper, value = float(accuracy["drop"]), accuracy["upper"], accuracy["cut"]["value"]
        return Point(share, plan.count, Path(_name(share)), value, drop, low, high, upper)

    def cut(self, point: Point, plan: Plan) -> None:
        """Cut, prove, save and time a budget, unless that is done."""
        if (self._folder(point.fraction) / "speed.json").exists():
            return
        ready, recipe, name = self.ready, self.recipe, _name(point.fraction)
        dense = ready.opened.model
        with given_back(dense, ready.calibration.sites):
            recipe.compensate.repair(ready.calibration, plan.remove)
            smaller = cut(copy.deepcopy(dense), plan).eval()
            some = ready.material.calibration.sample(16, 0)
            found = batches(some, ready.opened.tokenizer, model=dense, batch_size=8, max_length=ready.how["max_length"])
            proof = prove(dense, smaller, plan.remove, [batch.inputs for batch in islice(found, 2)])
        require(proof)
        self.stages.replace_json(f"{name}/proof.json", proof)
        facts = {"plan": plan.model_dump(mode="json", by_alias=True), "base": ready.opened.name}
        save(
            smaller, self._folder(point.fraction) / "checkpoint", processor=ready.opened.tokenizer, facts=facts,
            overwrite=True,
        )  # fmt: skip
        grid = recipe.speed
        speed = compare_speed(
            dense, smaller, batches=grid.batches, lengths=grid.lengths, rounds=grid.rounds, seconds=grid.seconds,
            seed=recipe.seed,
        )  # fmt: skip
        self.stages.replace_json(f"{name}/speed.json", speed)

    def _folder(self, share: float) -> Path:
        folder = self.stages.work / _name(share)
        folder.mkdir(exist_ok=True)
        return folder


def _name(share: float) -> str:
    return f"budget-{share:g}"


def _chosen(points: Sequence[Point], which: Cut) -> list[Point]:
    """The points, with who is on the front and who is to be cut."""
    found = []
    for point in points:
        front = not any(_beats(other, point) for other in points)
        chosen = {"front": front, "all": True, "none": False}[which] if isinstance(which, str) else None
        found.append(replace(point, front=front, chosen=point.fraction in which if chosen is None else chosen))
    return found


def _beats(one: Point, other: Point) -> bool:
    """At least as good in both, better in one."""
    return one.heads >= other.heads and one.drop <= other.drop and (one.heads, -one.drop) != (other.heads, -other.drop)


def _draw(work: Path, points: Sequence[Point]) -> None:
    """Every budget's report, and the page of all."""
    from headwise.prune.report import write, write_sweep

    for point in points:
        write(work / point.folder)
    write_sweep(work)
