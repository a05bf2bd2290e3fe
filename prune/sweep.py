"""Sweep: one greedy path walked once, every budget on it judged, the good ones cut and timed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from headwise.analysis.batching import batches
from headwise.analysis.errors import BadInput
from headwise.prune.checkpoint import save
from headwise.prune.compensation.undo import given_back
from headwise.prune.deciding import Judge, choose, judged, plan_of
from headwise.prune.importance import Scores
from headwise.prune.plan import Plan
from headwise.prune.preparing import Prepared, prepare
from headwise.prune.proof import prove, require
from headwise.prune.recipe import Recipe, check_against
from headwise.prune.selection import Budget
from headwise.prune.speed import compare_speed
from headwise.prune.stages import Stages
from headwise.prune.surgery import cut
from headwise.prune.tasks import compare


@dataclass(frozen=True)
class Point:
    """One budget of a sweep.

    Attributes:
        fraction: share of the heads that was to go.
        heads: heads that go.
        folder: its run folder.
        drop: in the task's metric, on the evaluation texts.
        upper: what the data cannot exclude as the drop.
        chosen: whether no other budget removes as much at a smaller drop, so that it was cut and timed.
    """

    fraction: float
    heads: int
    folder: Path
    drop: float
    upper: float | None
    chosen: bool


def sweep(
    recipe: Recipe,
    fractions: Sequence[float],
    target: Path,
    *,
    overwrite: bool = False,
    resume: bool = False,
    device: str | None = None,
    trust_remote_code: bool = False,
) -> list[Point]:
    """Judge a recipe at several budgets and write a run folder for each, and a comparison of all.

    Scores are measured once and their greedy path is walked once; a budget takes its beginning. Every budget
    is repaired, gated and judged on the evaluation texts; those that no other beats in both removal and drop
    are cut, proven, timed and saved.

    Args:
        recipe: its `remove` is left out of account.
        fractions: shares of the heads to remove.
        target: folder of the sweep.
        overwrite: replace an existing folder.
        resume: continue an interrupted sweep.
        device: where to run.
        trust_remote_code: run code that the checkpoint brings.

    Raises:
        BadInput: a budget cannot be met; or model, texts, recipe or folder do not fit.
        ProofFailed: gate and cut disagree.
    """
    shares = sorted(set(fractions))
    if not shares or not all(0 < share < 1 for share in shares):
        raise BadInput(f"budgets: got {', '.join(map(str, fractions)) or 'none'}; give shares of the heads, as 0.1,0.2")
    if recipe.reach is not None:
        raise BadInput("a sweep tries budgets one by one: take `reach` out of the recipe")
    with Stages(target, overwrite=overwrite, resume=resume) as stages:
        ready = prepare(recipe, device=device, trust_remote_code=trust_remote_code)
        for share in shares:
            at = recipe.model_copy(update={"remove": Budget(fraction=share)})
            check_against(at, ready.calibration.sites, ready.opened.model)
        stages.text("recipe.yaml", recipe.resolved_yaml)
        ready.evidence.save(stages.work / "evidence")
        walked = _Walk(recipe, ready, stages, shares)
        points = walked.points()
        stages.replace_json("sweep.json", {"schema": 1, "points": [_plain(point) for point in points]})
    _compared(points, target)
    return [Point(**{**point.__dict__, "folder": target / point.folder}) for point in points]


class _Walk:
    """The path, and what is known of each budget on it."""

    def __init__(self, recipe: Recipe, ready: Prepared, stages: Stages, shares: Sequence[float]) -> None:
        self.recipe, self.ready, self.stages, self.shares = recipe, ready, stages, shares
        self._scores: Scores | None = None

    @property
    def scores(self) -> Scores:
        if self._scores is None:
            self._scores = self.recipe.score.score(self.ready.calibration)
        return self._scores

    def points(self) -> list[Point]:
        found = [self._judged(share) for share in self.shares]
        front = [not any(_beats(other, point) for other in found) for point in found]
        done = [Point(**{**point.__dict__, "chosen": good}) for point, good in zip(found, front, strict=True)]
        for point in done:
            if point.chosen:
                self._cut(point)
        return done

    def _judged(self, share: float) -> Point:
        name = f"budget-{share:g}"
        (self.stages.work / name).mkdir(exist_ok=True)
        ready, recipe = self.ready, self.recipe
        plan = self.stages.saved(f"{name}/plan.json", lambda: self._plan(share), Plan)
        judge = Judge(ready.calibration.task, ready.material.evaluation)

        def measured() -> Mapping[str, Any]:
            outcome, repair = judged(recipe, ready.calibration, plan.remove, judge)
            dense = ready.calibration.task.judge(ready.opened.model, ready.material.evaluation)
            self.stages.replace_json(f"{name}/compensation.json", {"schema": 1, **repair})
            return {**compare(dense, outcome, seed=recipe.seed), "rows": len(ready.material.evaluation)}

        accuracy = self.stages.json(f"{name}/accuracy.json", measured)
        at = recipe.model_copy(update={"remove": Budget(fraction=share)})
        self.stages.text(f"{name}/recipe.yaml", at.resolved_yaml)
        self.stages.replace_json(f"{name}/environment.json", ready.made)
        return Point(share, plan.count, Path(name), float(accuracy["drop"]), accuracy["upper"], chosen=False)

    def _plan(self, share: float) -> Plan:
        budget = Budget(fraction=share)
        chosen = choose(self.recipe, self.ready.calibration, self.scores, self.ready.evidence, budget)
        return plan_of(self.recipe, chosen, self.scores, self.ready.made, budget=budget)

    def _cut(self, point: Point) -> None:
        work = self.stages.work / point.folder
        if (work / "speed.json").exists():
            return
        ready, recipe = self.ready, self.recipe
        dense, plan = ready.opened.model, Plan.load(work / "plan.json")
        with given_back(dense, ready.calibration.sites):
            recipe.compensate.repair(ready.calibration, plan.remove)
            smaller = cut(copy.deepcopy(dense), plan)
            some = ready.material.calibration.sample(16, 0)
            found = batches(some, ready.opened.tokenizer, model=dense, batch_size=8, max_length=ready.how["max_length"])
            proof = prove(dense, smaller, plan.remove, [batch.inputs for batch in islice(found, 2)])
        require(proof)
        self.stages.replace_json(f"{point.folder}/proof.json", proof)
        facts = {"plan": plan.model_dump(mode="json", by_alias=True), "base": ready.opened.name}
        save(smaller, work / "checkpoint", processor=ready.opened.tokenizer, facts=facts, overwrite=True)
        grid = recipe.speed
        speed = compare_speed(
            dense, smaller, batches=grid.batches, lengths=grid.lengths, rounds=grid.rounds, seconds=grid.seconds,
            seed=recipe.seed,
        )  # fmt: skip
        self.stages.replace_json(f"{point.folder}/speed.json", speed)


def _beats(one: Point, other: Point) -> bool:
    """At least as good in both, better in one."""
    return one.heads >= other.heads and one.drop <= other.drop and (one.heads, -one.drop) != (other.heads, -other.drop)


def _plain(point: Point) -> dict[str, Any]:
    return {**point.__dict__, "folder": str(point.folder)}


def _compared(points: Sequence[Point], target: Path) -> None:
    """The front: accuracy against speed, in a page of its own."""
    from headwise.prune.report import write, write_comparison

    folders = [target / point.folder for point in points]
    for folder in folders:
        write(folder)
    if len(folders) > 1:
        write_comparison(folders, target / "comparison")
