"""Sweep: one greedy path walked once, every budget on it judged, the good ones cut, trained if asked, and timed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.progress import track
from headwise.prune.begun import begun_at
from headwise.prune.checkpoint import load, read_back
from headwise.prune.deciding import decide, plan_of, steadiness
from headwise.prune.deciding.stability import stability
from headwise.prune.environment import unchanged
from headwise.prune.folder import check_place, settled, space_told
from headwise.prune.folder.stages import Stages
from headwise.prune.growth import growth
from headwise.prune.importance import Scores
from headwise.prune.judging import Carve, Errand, Gate, Judging, Task, side_by_side
from headwise.prune.plan import Plan
from headwise.prune.preparing import Prepared, prepare
from headwise.prune.recipe import Recipe
from headwise.prune.recovery.trained import FILE as TRAINED
from headwise.prune.selection import Budget, reachable, walk
from headwise.prune.speed import compare_speed
from headwise.prune.sweep.points import Figures, Point, Which, chosen, figures

log = logging.getLogger("headwise")


def sweep(
    recipe: Recipe,
    fractions: Sequence[float],
    target: Path,
    *,
    which: Which = "front",
    jobs: int = 1,
    overwrite: bool = False,
    resume: bool = False,
    device: str | None = None,
    trust_remote_code: bool = False,
) -> list[Point]:
    """Judge a recipe at several budgets and write a run folder for each, and a page that compares all.

    Scores are measured once and their greedy path is walked once; a budget takes its beginning. Where a method's
    selections do not hold one another (a search beyond greedy, trained gates), each budget is decided by itself, and
    the page says so. Every budget is repaired, gated and judged on the evaluation texts; those chosen by that are cut,
    proven, trained and judged again if the recipe says `recover`, saved and timed.

    Args:
        recipe: its `remove` is left out of account.
        fractions: shares of the heads to remove.
        target: folder of the sweep.
        which: budgets to cut and time.
        jobs: processes that judge, or cut and train, budgets at a time; the numbers do not depend on it.
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
    with Stages(target, overwrite=overwrite, resume=resume) as stages, space_told(target):
        stages.text("recipe.yaml", recipe.resolved_yaml)
        first, *others = (_at(recipe, share) for share in shares)
        first = _pinned(first, begun_at(stages.work, recipe.model.id))
        ready = prepare(
            first, device=device, trust_remote_code=trust_remote_code, also=others,
            look=lambda make: stages.evidence(make, Evidence),
        )  # fmt: skip
        made = stages.json("environment.json", lambda: ready.made)
        unchanged(made, ready.made)
        swept = _Sweep(recipe, ready, stages, shares, made)
        plans = swept.plans()
        first = _pinned(first, ready.opened.facts["revision"])
        errand = Errand(
            first.resolved_yaml(), stages.work / "evidence", device, trust_remote_code, torch.get_num_threads()
        )
        swept.judge(plans, errand, jobs)
        points = chosen([swept.point(share, plans[share]) for share in shares], which)
        # What was cut before an interruption stays, whichever budgets are chosen now.
        points = [replace(point, chosen=point.chosen or swept.is_cut(point.fraction)) for point in points]
        swept.cut({point.fraction: plans[point.fraction] for point in points if point.chosen}, errand, jobs)
        for kept in stages.work.glob(f"*/{TRAINED}"):
            kept.unlink()
        points = [replace(point, recovered=swept.recovered(point.fraction)) for point in points]
        listed = [asdict(point) | {"folder": str(point.folder)} for point in points]
        told = {"schema": 1, **swept.judged_by(), "path": swept.path, "points": listed}
        stages.replace_json("sweep.json", told)
        _draw(stages.work, points)
    return [replace(point, folder=target / point.folder) for point in points]


def _asked(recipe: Recipe, fractions: Sequence[float], which: Which, jobs: int) -> list[float]:
    """The budgets, small to large.

    Raises:
        BadInput: what was asked for makes no sense.
    """
    shares = sorted(set(fractions))
    wrong = [share for share in fractions if not 0 < share < 1]
    if wrong or not shares:
        raise BadInput(
            f"budgets: got {', '.join(f'{share:g}' for share in wrong) or 'none'}; give shares of the heads, above 0 and "
            "below 1, as 0.1,0.2"
        )
    if not isinstance(which, str) and not set(which) <= set(shares):
        strange = ", ".join(f"{share:g}" for share in which if share not in shares)
        raise BadInput(f"cut: {strange} is none of the budgets {', '.join(f'{share:g}' for share in shares)}")
    if jobs < 1:
        raise BadInput(f"jobs: got {jobs}, expected at least 1")
    if recipe.reach is not None:
        raise BadInput("a sweep tries budgets one by one: take `reach` out of the recipe")
    return shares


def _at(recipe: Recipe, share: float) -> Recipe:
    """The recipe at a budget; gates that are trained for a number of heads are trained for this one."""
    change: dict[str, Any] = {"remove": Budget(fraction=share)}
    if _aimed(recipe):
        change["score"] = recipe.score.model_copy(update={"keep": 1 - share, "heads": None})
    at = recipe.model_copy(update=change)
    # What is wrong with a budget is not the fault of the recipe's own.
    at._places = recipe._places.instead(("remove",), f"budget {share:g}")
    return at


def _pinned(recipe: Recipe, commit: str | None) -> Recipe:
    """The recipe with its checkpoint at a commit of the hub, which a branch may leave while the sweep lasts."""
    if commit is None:
        return recipe
    at = recipe.model_copy(update={"model": recipe.model.model_copy(update={"revision": commit})})
    at._places = recipe._places
    return at


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
        self.judging = Judging(recipe, ready)
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
        ranks = stability(scores.kind, scores, scores.resampled, seed=recipe.seed)
        how: dict[str, Any] = {"scope": recipe.scope, "keep": recipe.keep, "unit": recipe.unit}
        how["evidence"] = ready.evidence
        sites = ready.calibration.sites
        path = walk(sites, scores.costs, Budget(fraction=max(shares)), **how)
        for share in shares:
            budget = Budget(fraction=share)
            chosen = path.beginning(reachable(sites, budget, **how), scores.kind, scores.notes)
            stable = steadiness(recipe, ready.calibration, scores, ready.evidence, budget, ranks=ranks)
            yield share, plan_of(recipe, chosen, scores, self.made, budget=budget, stable=stable)

    def judge(self, plans: Mapping[float, Plan], errand: Errand, jobs: int) -> None:
        """Judge every budget that is not judged yet."""
        todo = {s: Gate(plan.remove) for s, plan in plans.items() if not (self._folder(s) / "accuracy.json").exists()}
        for share, found in self._done(todo, errand, jobs, "Judging budgets"):
            self.stages.replace_json(f"{_name(share)}/compensation.json", found["compensation"])
            # Last: where it is, the budget is judged.
            self.stages.replace_json(f"{_name(share)}/accuracy.json", found["accuracy"])

    def _done(
        self, todo: Mapping[float, Task], errand: Errand, jobs: int, label: str
    ) -> Iterator[tuple[float, dict[str, Any]]]:
        if jobs > 1 and len(todo) > 1:
            shares = {_name(share): share for share in todo}
            tasks = {_name(share): task for share, task in todo.items()}
            yield from ((shares[name], found) for name, found in side_by_side(errand, tasks, jobs, label))
            return
        for share, task in track(todo.items(), total=len(todo), label=label):
            yield share, task(self.judging)

    def point(self, share: float, plan: Plan) -> Point:
        """What came out at a budget, before any training."""
        return Point(share, plan.count, Path(_name(share)), **asdict(figures(self._gated(share))))

    def judged_by(self) -> dict[str, Any]:
        """The metric, and what it says where no labels stand behind it."""
        accuracy = self.stages.json(f"{_name(self.shares[0])}/accuracy.json", dict)
        return {name: accuracy[name] for name in ("metric", "meaning") if name in accuracy}

    def recovered(self, share: float) -> Figures | None:
        """What came out at a budget after training; None if nothing was trained."""
        if not (self._folder(share) / "recovery.json").exists():
            return None
        return figures(self.stages.json(f"{_name(share)}/accuracy.json", dict))

    def _gated(self, share: float) -> dict[str, Any]:
        accuracy = self.stages.json(f"{_name(share)}/accuracy.json", dict)
        if accuracy.get("judged") != "cut":
            return accuracy
        untrained: dict[str, Any] = self.stages.json(f"{_name(share)}/recovery.json", dict)["untrained"]
        return untrained

    def cut(self, plans: Mapping[float, Plan], errand: Errand, jobs: int) -> None:
        """Cut, prove, train, save and time budgets, unless that is done."""
        todo: dict[float, Task] = {}
        for share, plan in plans.items():
            if not self.is_cut(share):
                todo[share] = Carve(plan, self._gated(share), self._folder(share) / "checkpoint.new")
        label = "Cutting budgets" if self.recipe.recover.kind == "none" else "Cutting and training budgets"
        for share, found in self._done(todo, errand, jobs, label):
            self._keep_cut(share, found)
        for share in plans:
            if not (self._folder(share) / "speed.json").exists():
                self.stages.replace_json(f"{_name(share)}/speed.json", self._speed(share))

    def is_cut(self, share: float) -> bool:
        """Whether a budget's checkpoint is there."""
        return (self._folder(share) / "checkpoint").exists()

    def _keep_cut(self, share: float, found: Mapping[str, Any]) -> None:
        self.stages.replace_json(f"{_name(share)}/proof.json", found["proof"])
        if "recovery" in found:
            # First what holds the figures from before the training, then those that take their place.
            self.stages.replace_json(f"{_name(share)}/recovery.json", found["recovery"])
            self.stages.replace_json(f"{_name(share)}/accuracy.json", found["accuracy"])
        fresh = self._folder(share) / "checkpoint.new"
        read_back(fresh, self.ready.opened.model, found["weights"])
        # Last: where it is, the budget is cut.
        fresh.rename(fresh.with_name("checkpoint"))

    def _speed(self, share: float) -> dict[str, Any]:
        grid, dense = self.recipe.speed, self.ready.opened.model
        first = next(dense.parameters())
        smaller = load(self._folder(share) / "checkpoint", cls=type(dense), dtype=first.dtype).to(first.device)
        return compare_speed(
            dense, smaller, batches=grid.batches, lengths=grid.lengths, rounds=grid.rounds, seconds=grid.seconds,
            seed=self.recipe.seed,
        )  # fmt: skip

    def _folder(self, share: float) -> Path:
        folder = self.stages.work / _name(share)
        folder.mkdir(exist_ok=True)
        return folder


def _name(share: float) -> str:
    return f"budget-{share:g}"


def _draw(work: Path, points: Sequence[Point]) -> None:
    """Every budget's report, and the page of all."""
    from headwise.prune.report import write, write_sweep

    for point in points:
        write(work / point.folder)
    write_sweep(work)
