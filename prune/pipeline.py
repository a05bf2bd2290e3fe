"""The whole run: evidence, plan, proof, cut, accuracy, speed, checkpoint, report – from top to bottom."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.identity import weights_hash
from headwise.analysis.sites import Site, find_sites
from headwise.prune.begun import begun_at
from headwise.prune.carving import carve, recover
from headwise.prune.chance import by_chance
from headwise.prune.checkpoint import read_back, save
from headwise.prune.checkpoint.native import native_reason
from headwise.prune.deciding import decide
from headwise.prune.deciding.representatives import represented
from headwise.prune.drift import head_drift
from headwise.prune.environment import environment, now, unchanged
from headwise.prune.folder import check_place, settled, space_told
from headwise.prune.folder.stages import Stages
from headwise.prune.growth import tell_growth
from headwise.prune.inspection import run_folder
from headwise.prune.latency_use import TABLE, beside_forecast, latency_of, with_table
from headwise.prune.material import Material
from headwise.prune.opening import Opened, open_checkpoint
from headwise.prune.plan import Plan
from headwise.prune.preparing import gathered, measures_of, ready
from headwise.prune.recipe import Recipe, check_against
from headwise.prune.recovery.trained import FILE as TRAINED
from headwise.prune.report.doubt import doubt
from headwise.prune.speed import compare_speed
from headwise.prune.speed.latency import Latency
from headwise.prune.speed.quiet import refuse_hooks
from headwise.prune.tasks import Outcome, compare
from headwise.prune.tasks.agreement import FittedAgreement, token_divergence
from headwise.prune.tasks.text_classification import pad_known


@dataclass(frozen=True)
class Run:
    """What a recipe produced.

    Attributes:
        folder: everything needed to read the run, check it and repeat it.
        plan: which heads went, and why.
        model: the cut model, as saved.
        evidence: what was measured about heads.
        accuracy: dense against cut on texts that decided nothing.
        speed: dense against cut, with the ceiling that the removed operations set.
        proof: how exactly gate and cut agree.
    """

    folder: Path
    plan: Plan
    model: nn.Module
    evidence: Evidence
    accuracy: Mapping[str, Any]
    speed: Mapping[str, Any]
    proof: Mapping[str, Any]


def run(
    recipe: Recipe, model: nn.Module | None = None, *, tokenizer: Any = None, output_dir: str | Path | None = None,
    overwrite: bool = False, resume: bool = False, device: str | None = None, trust_remote_code: bool = False,
) -> Run:  # fmt: skip
    """Carry out a recipe and write its run folder, which appears whole or not at all.

    Args:
        recipe: checked already in all that needs no model.
        model: a model that is open already, instead of the recipe's checkpoint; it is left as it was.
        tokenizer: its tokenizer; the recipe's checkpoint is asked by default.
        output_dir: the run's folder; `runs/<model>-<recipe>-<UTC time>` by default.
        overwrite: replace an existing folder.
        resume: continue a run that was interrupted in this folder, at its last finished stage.
        device: where to run.
        trust_remote_code: run code that the checkpoint brings.

    Raises:
        BadInput: if model, texts, recipe or folder do not fit; nothing is written then.
        ProofFailed: if gate and cut disagree; nothing is saved then.
    """
    if recipe.model.id is None and model is None:
        raise BadInput("no model: give model.id in the recipe, or a model")
    name = recipe.model.id or getattr(model, "name_or_path", "") or type(model).__name__
    target = Path(output_dir) if output_dir is not None else run_folder(name, recipe_name(recipe))
    check_place(settled(target), name)
    with Stages(target, overwrite=overwrite, resume=resume) as stages, space_told(target), ExitStack() as held:
        revision = begun_at(stages.work, name) or recipe.model.revision
        opened = open_checkpoint(
            name, revision=revision, dtype=recipe.model.dtype, device=device,
            trust_remote_code=trust_remote_code, model=model, tokenizer=tokenizer,
        )  # fmt: skip
        # Timing would refuse them at the end of a long look.
        refuse_hooks(opened.model)
        # A model that was open already is told for as long as the run lasts.
        held.enter_context(pad_known(opened.model, opened.filling))
        sites = find_sites(opened.model)
        check_against(recipe, sites, opened.model)
        taken = latency_of(recipe, opened, sites, stages.work / TABLE)
        latency = None if taken is None else stages.saved(TABLE, partial(copy.copy, taken), Latency)
        material = gathered(recipe, opened, sites)
        undecided = not (stages.work / "plan.json").exists()
        stages.text("recipe.yaml", with_table(recipe).resolved_yaml, lambda was: undecided and _measures(was, recipe))
        made = stages.json("environment.json", lambda: _environment(recipe, opened, material))
        unchanged(made, _environment(recipe, opened, material))
        done = _carry_out(recipe, opened, material, sites, stages, made, latency)
    return Run(target, *done)


def _carry_out(
    recipe: Recipe, opened: Opened, material: Material, sites: Mapping[str, Site], stages: Stages, made: dict[str, Any],
    latency: Latency | None,
) -> tuple[Any, ...]:  # fmt: skip
    """The stages after everything has been checked; each one's files let an interrupted run skip it."""
    from headwise.prune.report import write

    prepared = ready(
        recipe, opened, sites, material, made, latency, lambda look: stages.evidence(look, Evidence)
    )  # fmt: skip
    dense, tokenizer = opened.model, opened.tokenizer
    material, calibration, evidence, how = prepared.material, prepared.calibration, prepared.evidence, prepared.how
    fitted = calibration.task

    plan = stages.saved("plan.json", lambda: decide(recipe, calibration, evidence, made, prepared.judge, latency), Plan)
    evidence = stages.replaced("evidence", evidence, represented(evidence, plan, recipe.score.kind))
    calibration.decided()
    tell_growth(dense, sites, plan.remove)
    stages.json("stability.json", lambda: plan.made_with["stability"])
    before = fitted.judge(dense, material.evaluation)
    carved = carve(
        recipe, calibration, plan, material.calibration, tokenizer, how, partial(stages.json, "proof.json"),
        apart=opened.lent,
    )  # fmt: skip
    smaller, proof = carved.model, carved.proof
    stages.json("compensation.json", lambda: carved.repair)
    told = recover(recipe, calibration, smaller, lambda: compare(
        before, fitted.judge(smaller, material.evaluation), seed=recipe.seed
    ), stages.work / TRAINED)  # fmt: skip
    if told:
        stages.replace_json("recovery.json", told)

    accuracy = stages.json("accuracy.json", lambda: {
        **_accuracy(recipe, fitted, dense, smaller, before, material),
        "chance": by_chance(recipe, calibration, evidence, plan, material.evaluation),
    })  # fmt: skip
    stages.json("drift.json", lambda: head_drift(
        dense, smaller, tokenizer, material.evaluation, also=recipe.keep.roles, seed=recipe.seed, **how
    ))  # fmt: skip
    speed = stages.json(
        "speed.json", lambda: beside_forecast(_speed(recipe, dense, smaller), recipe, plan, dense, smaller)
    )
    facts = {
        "plan": plan.model_dump(mode="json", by_alias=True), "recipe": recipe.resolved_yaml(),
        "base": opened.name, "figures": figures(accuracy, speed),
    }  # fmt: skip
    stages.saved("checkpoint", lambda: _Checkpoint(smaller, tokenizer, facts), _Checkpoint(smaller))
    serving = _serving(smaller)
    stages.replace_json(
        "environment.json", {**made, "serving": serving, "finished": now(), "cut_hash": weights_hash(smaller)}
    )
    write(stages.work)
    (stages.work / TRAINED).unlink(missing_ok=True)
    return plan, smaller, evidence, accuracy, speed, proof


def dry_run(recipe: Recipe, *, trust_remote_code: bool = False) -> dict[str, Any]:
    """What a recipe would do to its checkpoint, from the configuration alone: no weights are read.

    Raises:
        BadInput: if the recipe does not fit the model.
    """
    from headwise.prune.forecast import forecast

    return forecast(recipe, trust_remote_code=trust_remote_code)


def _measures(was: str, recipe: Recipe) -> bool:
    """Whether the recipe of an interrupted run measures the same on the same texts, whatever it decides by it."""
    old = Recipe.from_text(was, "the interrupted run's recipe.yaml")
    pairs: tuple[tuple[Any, Any], ...] = ((old.model, recipe.model), (old.data, recipe.data), (old.seed, recipe.seed))
    pairs += ((measures_of(old), measures_of(recipe)), (old.searched, recipe.searched))
    return all(one == other for one, other in pairs)


def recipe_name(recipe: Recipe) -> str:
    """What a recipe is called in a folder's name: its file's or shipped name."""
    where = getattr(getattr(recipe, "_places", None), "where", "") or "recipe"
    return Path(where).stem


def _figure(value: float | int | None) -> str:
    """A number in four digits; one that is not finite has no value in the files."""
    return "not finite" if value is None else f"{value:.4g}"


def figures(accuracy: Mapping[str, Any], speed: Mapping[str, Any]) -> list[str]:
    """The run's main figures in a line each, for the model card."""
    sides = " dense, ".join(_figure(accuracy[side]["value"]) for side in ("dense", "cut"))
    lines = [f"{accuracy['metric']}: {sides} cut, on {accuracy['n']} texts"]
    if accuracy["upper"] is not None:
        lines.append(f"a drop above {_figure(accuracy['upper'])} is excluded (one-sided, 95 %)")
    for row in speed.get("rows", []):
        ratio, why = row["ratio"], doubt(row)
        lines.append(
            f"batch {row['batch']} x {row['length']} tokens: {ratio['median']:.2f}x as fast "
            f"({ratio['low']:.2f} to {ratio['high']:.2f}; the operations predict {row['operation_ratio']:.2f}x)"
            f"{f': {why}' if why else ''}"
        )
    return lines


def _environment(recipe: Recipe, opened: Opened, material: Material) -> dict[str, Any]:
    return environment(seed=recipe.seed, model=opened.facts, texts=material.facts())


def _accuracy(
    recipe: Recipe, fitted: Any, dense: nn.Module, smaller: nn.Module, before: Outcome, material: Material
) -> dict[str, Any]:
    """Dense against cut on the texts that decided nothing."""
    after = fitted.judge(smaller, material.evaluation)
    found = {**compare(before, after, seed=recipe.seed), "rows": before.drawn_from(material.evaluation)}
    if isinstance(fitted, FittedAgreement) and fitted.headed and before.probabilities is None:
        divergence = token_divergence(dense, smaller, fitted, material.evaluation)
        found["against_dense"] = {**found.get("against_dense", {}), "kl": divergence}
    return found


def _speed(recipe: Recipe, dense: nn.Module, smaller: nn.Module) -> dict[str, Any]:
    grid = recipe.speed
    return compare_speed(
        dense, smaller, batches=grid.batches, lengths=grid.lengths, rounds=grid.rounds, seconds=grid.seconds,
        seed=recipe.seed,
    )  # fmt: skip


@dataclass(frozen=True)
class _Checkpoint:
    """The checkpoint as a stage: written, then read back and compared, before the run goes on."""

    model: nn.Module
    tokenizer: Any = None
    facts: Mapping[str, Any] | None = None

    def save(self, folder: Path) -> None:
        save(self.model, folder, processor=self.tokenizer, facts=self.facts)

    def load(self, folder: Path) -> nn.Module:
        """The model as a new process would get it.

        Raises:
            BadInput: if what was read back is not what was written.
        """
        return read_back(folder, self.model, weights_hash(self.model))


def _serving(model: nn.Module) -> dict[str, Any]:
    """Whether a stock configuration can say the new shape, found out by trying, and if not, why."""
    reason = native_reason(model)
    return {"form": "headwise", "native": not reason, "native_reason": reason}
