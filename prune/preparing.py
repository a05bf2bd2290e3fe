"""Preparing: model, texts, task and evidence of a recipe, ready to decide with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.analysis.analyze import analyze
from headwise.analysis.corpus.batching import batches
from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.similarity import CHEAP
from headwise.analysis.sites import Site, find_sites
from headwise.prune.deciding import Judge
from headwise.prune.environment import environment
from headwise.prune.forecast.needs import needs_of, require_memory
from headwise.prune.forecast.reached import require_loss, require_reached
from headwise.prune.importance.calibration import Calibration
from headwise.prune.latency_use import latency_of
from headwise.prune.material import Material, gather
from headwise.prune.opening import Opened, open_checkpoint
from headwise.prune.recipe import Recipe, check_against
from headwise.prune.speed.latency import Latency
from headwise.prune.tasks import choose_task
from headwise.prune.tasks.text_classification import is_classifier

log = logging.getLogger("headwise")


@dataclass(frozen=True)
class Prepared:
    """A recipe's checkpoint and texts, checked against each other.

    Attributes:
        opened: the checkpoint.
        material: calibration and evaluation.
        calibration: model, sites, texts and task that decide.
        judge: what candidates of a search are judged by; None if the recipe searches nothing.
        made: environment of the run.
        how: batch size and length.
        latency: the latency table that decides, if the recipe reaches for a time.
    """

    opened: Opened
    material: Material
    calibration: Calibration
    judge: Judge | None
    made: dict[str, Any]
    how: dict[str, Any]
    latency: Latency | None = None

    @property
    def evidence(self) -> Evidence:
        """What was measured about the heads."""
        return self.calibration.evidence  # type: ignore[no-any-return]


#: From what makes the evidence, given a folder for sums that an interrupted look left, to the evidence.
Look = Callable[[Callable[[Path | None], Evidence]], Evidence]


def prepare(
    recipe: Recipe, *, device: str | None = None, trust_remote_code: bool = False, also: Sequence[Recipe] = (),
    look: Look = lambda make: make(None),
) -> Prepared:  # fmt: skip
    """Open, check, gather and measure: all that comes before a decision.

    Args:
        recipe: with a model.
        device: where to run.
        trust_remote_code: run code that the checkpoint brings.
        also: the same recipe with other budgets, to be checked before anything is measured.
        look: gives the evidence, by what it is handed or from where it was kept.

    Raises:
        BadInput: if model, texts and recipe do not fit.
    """
    if recipe.model.id is None:
        raise BadInput("no model: give model.id in the recipe, or a model")
    opened = open_checkpoint(
        recipe.model.id, revision=recipe.model.revision, dtype=recipe.model.dtype, device=device,
        trust_remote_code=trust_remote_code,
    )  # fmt: skip
    sites = find_sites(opened.model)
    for one in (recipe, *also):
        check_against(one, sites, opened.model)
    latency = latency_of(recipe, opened, sites)
    material = gathered(recipe, opened, sites)
    made = environment(seed=recipe.seed, model=opened.facts, texts=material.facts())
    return ready(recipe, opened, sites, material, made, latency, look)


def ready(
    recipe: Recipe, opened: Opened, sites: Mapping[str, Site], material: Material, made: dict[str, Any],
    latency: Latency | None, look: Look,
) -> Prepared:  # fmt: skip
    """Put together what decides: task and evidence of a model that is open, on texts that are gathered.

    Args:
        recipe: checked against the model.
        opened: the model, with its tokenizer.
        sites: its sites.
        material: its texts.
        made: environment of the run.
        latency: the latency table that decides, if any.
        look: gives the evidence, by what it is handed or from where it was kept.

    Raises:
        BadInput: the task does not fit, which is said before the long look.
    """
    dense, tokenizer = opened.model, opened.tokenizer
    material, selection = material.parts(recipe.seed) if recipe.searched else (material, None)
    how: dict[str, Any] = {"batch_size": recipe.data.batch_size, "max_length": recipe.data.max_length}
    task = recipe.task or choose_task(dense, tokenizer, material.calibration)
    if recipe.task is None and task.kind == "agreement" and is_classifier(dense):
        log.warning(
            "no column of labels is named, so the cut model is judged by how far it agrees with the dense one; "
            "--label-column NAME (data.calibration.label) judges it by the labels"
        )
    fitted = task.fit(dense, tokenizer, material.calibration, seed=recipe.seed, **how)
    seen: dict[str, Any] = {"measures": measures_of(recipe), "seed": recipe.seed, **how}
    evidence = look(lambda sums: analyze(dense, tokenizer, material.calibration, keep=sums, **seen))
    texts = batches(material.calibration, tokenizer, model=dense, **how)
    calibration = Calibration(dense, sites, texts, task=fitted, evidence=evidence, seed=recipe.seed)
    tried = None if selection is None else batches(selection, tokenizer, model=dense, **how)
    judge = None if selection is None else Judge(fitted, selection, tried)
    return Prepared(opened, material, calibration, judge, made, how, latency)


def measures_of(recipe: Recipe) -> tuple[str, ...]:
    """What a run measures of how alike heads are: what costs next to nothing, and what the recipe's score asks for.

    >>> measures_of(Recipe.load("redundancy", ["score.measure=cka"]))
    ('pearson', 'cosine', 'hellinger', 'cka')
    """
    asked = getattr(recipe.score, "measure", CHEAP[0])
    return CHEAP if asked in CHEAP else (*CHEAP, asked)


def gathered(recipe: Recipe, opened: Opened, sites: Mapping[str, Site]) -> Material:
    """The texts of a recipe, after all that can be told by them and the model before anything is measured.

    Raises:
        BadInput: texts that cannot be had, sites or a loss that they do not come by, or too little memory.
    """
    model, tokenizer = opened.model, opened.tokenizer
    material = gather(recipe.data, recipe.seed)
    require_reached(model, tokenizer, sites, material.calibration)
    require_loss(model, tokenizer, recipe.score, material.calibration)
    material = material.measured(model, tokenizer, recipe.data.max_length, recipe.task)
    require_memory(needs_of(recipe, model, sites, material, tokenizer))
    return material
