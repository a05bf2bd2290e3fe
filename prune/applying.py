"""Applying: a plan on a checkpoint – repair if asked for, cut, proof, training if asked for, save."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from headwise.analysis.corpus.batching import batches
from headwise.analysis.corpus.embedded_text import embedded_corpus
from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.errors import BadInput
from headwise.analysis.gates.synthetic import synthetic_inputs
from headwise.analysis.sites import Site, find_sites
from headwise.prune.carving import carve, proving
from headwise.prune.checkpoint import save
from headwise.prune.growth import tell_growth
from headwise.prune.importance.calibration import Calibration
from headwise.prune.material import gather
from headwise.prune.opening import Opened, open_checkpoint
from headwise.prune.plan import Plan
from headwise.prune.proof import prove, require
from headwise.prune.recipe import Recipe
from headwise.prune.speed.operations import parameters
from headwise.prune.surgery import cut
from headwise.prune.surgery.removable import removable
from headwise.prune.surgery.twin import twin
from headwise.prune.tasks import choose_task

log = logging.getLogger("headwise")

_PROOF_LENGTH = 128


def apply_plan(
    model: str,
    plan: Plan,
    target: Path,
    *,
    where: str = "the plan",
    recipe: Recipe | None = None,
    revision: str | None = None,
    dtype: str = "auto",
    device: str | None = None,
    trust_remote_code: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """What was removed and how exactly; the checkpoint is in `target`.

    Args:
        model: hub id, folder, or `embedded`.
        plan: the heads that go.
        target: folder of the new checkpoint.
        where: what the plan is called in messages, such as its file.
        recipe: says how what is left is repaired and trained, and on which texts; neither is done without it.
        revision: of a hub checkpoint.
        dtype: what weights load as.
        device: where the model runs.
        trust_remote_code: run code that the checkpoint brings.
        overwrite: replace an existing folder.

    Raises:
        BadInput: model, plan, texts or folder do not fit.
        ProofFailed: gate and cut disagree; nothing is saved then.
    """
    opened = open_checkpoint(model, revision=revision, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    dense = opened.model
    sites = find_sites(dense)
    going = _going(dense, sites, plan, where)
    tell_growth(dense, sites, plan.remove)
    if plan.model and not _line_of(plan.model) & _line_of(model):
        log.warning("the plan was made for %s; a head of %s with the same number is another head", plan.model, model)
    texts = embedded_corpus() if recipe is None else gather(recipe.data, recipe.seed).calibration
    if recipe is not None:
        smaller, proof, brought = _carried_out(opened, sites, texts, plan, recipe)
    else:
        # No images or clips come with the plan: any of the right shape show whether gate and cut agree.
        reads_texts = hasattr(opened.tokenizer, "all_special_ids")
        inputs: list[Mapping[str, Any]] = (
            proving(dense, sites, texts, opened.tokenizer, _PROOF_LENGTH) if reads_texts else [synthetic_inputs(dense)]
        )
        smaller = cut(twin(dense, sites.values()), plan, inputs=inputs[0])
        proof = prove(dense, smaller, plan.remove, inputs)
        require(proof)
        brought = {"compensation": {"kind": "none", "sites": {}}}
    facts = {"plan": plan.model_dump(mode="json", by_alias=True), "base": opened.name, **brought}
    save(smaller, target, processor=opened.tokenizer, facts=facts, overwrite=overwrite)
    return {
        "checkpoint": str(target),
        "heads_removed": going,
        "parameters": {"dense": parameters(dense), "cut": parameters(smaller)},
        "proof": proof,
        **brought,
    }


def _carried_out(
    opened: Opened, sites: Mapping[str, Site], texts: Corpus, plan: Plan, recipe: Recipe
) -> tuple[nn.Module, dict[str, Any], dict[str, Any]]:
    """The cut model, repaired and trained as a recipe says; its proof, and what repair and training brought."""
    dense, tokenizer = opened.model, opened.tokenizer
    how: dict[str, Any] = {"batch_size": recipe.data.batch_size, "max_length": recipe.data.max_length}
    task = recipe.task or choose_task(dense, tokenizer, texts)
    fitted = task.fit(dense, tokenizer, texts, seed=recipe.seed, **how)
    found = batches(texts, tokenizer, model=dense, **how)
    carved = carve(recipe, Calibration(dense, sites, found, task=fitted, seed=recipe.seed), plan, texts, tokenizer, how)
    brought: dict[str, Any] = {"compensation": carved.repair}
    if recipe.recover.kind != "none":
        brought["recovery"] = recipe.recover.train(dense, carved.model, fitted, found, seed=recipe.seed)
    return carved.model, carved.proof, brought


def _going(model: nn.Module, sites: Mapping[str, Site], plan: Plan, where: str) -> int:
    """How many heads a plan takes from a model; those that an earlier cut took are gone already.

    Raises:
        BadInput: none, or it names what the model does not have.
    """
    try:
        found = removable(model, sites, plan.remove)
    except BadInput as error:
        raise type(error)(f"{where}: {error}") from error
    if not plan.count:
        raise BadInput(
            f'{where} removes no head: there is nothing to cut; name heads, as in {{"remove": {{"3": [1, 7]}}}}'
        )
    if not found:
        raise BadInput(f"{where}: every head that it names is gone already, so there is nothing to cut; name others")
    return sum(map(len, found.values()))


def _line_of(model: str) -> set[str]:
    """Names of a checkpoint and of those that it was cut from, as far as they are here: their heads are numbered alike."""
    names: set[str] = set()
    while model and (name := Path(model).name) not in names:
        names.add(name)
        try:
            model = str(json.loads((Path(model) / "headwise.json").read_text(encoding="utf-8"))["base"])
        except (OSError, ValueError, LookupError, TypeError):
            # Dense, of the hub, or somewhere else by now: there the line ends.
            break
    return names
