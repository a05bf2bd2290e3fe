"""Carving: a plan carried out on a copy of the model – repaired, cut, proven, and trained where the recipe says so."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from headwise.analysis.corpus.batching import batches
from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.sites import Site
from headwise.prune.compensation.undo import given_back
from headwise.prune.importance.calibration import Calibration
from headwise.prune.plan import Plan
from headwise.prune.proof import lightened, prove, require
from headwise.prune.recipe import Recipe
from headwise.prune.recovery.trained import trained
from headwise.prune.surgery import cut
from headwise.prune.surgery.twin import twin

Facts = dict[str, Any]

#: What is kept of a comparison from before the training.
_UNTRAINED = ("dense", "cut", "drop", "interval", "upper", "p")
_PROOF_BATCHES, _PROOF_SIZE = 2, 8


@dataclass(frozen=True)
class Carved:
    """A cut model, not trained yet.

    Attributes:
        model: the dense model's copy without the heads.
        repair: what the repair brought.
        proof: how exactly gate and cut agree.
    """

    model: nn.Module
    repair: Facts
    proof: Facts


def carve(
    recipe: Recipe, calibration: Calibration, plan: Plan, texts: Corpus, tokenizer: Any, how: Mapping[str, Any],
    known: Callable[[Callable[[], Facts]], Facts] = lambda make: make(), *, apart: bool = False,
) -> Carved:  # fmt: skip
    """Repair, cut and prove; the calibration's model is given back as it was.

    Args:
        recipe: how to repair.
        calibration: model and texts that decided.
        plan: which heads go.
        texts: the calibration texts; the first real batches of them prove.
        tokenizer: of the model.
        how: batch size and length.
        known: gives the proof, by what it is handed or from where it was kept.
        apart: whether the copy has all weights for itself; one that is trained has anyway.

    Raises:
        ProofFailed: gate and cut disagree.
    """
    dense = calibration.model
    with given_back(dense, calibration.sites):
        # Repair changes what is left before the cut, so that gate and cut stay comparable.
        repair = recipe.compensate.repair(calibration, plan.remove)
        inputs = next(iter(calibration.batches)).inputs
        whole = apart or recipe.recover.kind != "none"
        copied = copy.deepcopy(dense) if whole else twin(dense, calibration.sites.values())
        smaller = cut(copied, plan, inputs=inputs).eval()
        proof = known(lambda: prove(
            dense, smaller, plan.remove, proving(dense, calibration.sites, texts, tokenizer, how["max_length"])
        ))  # fmt: skip
    require(proof)
    return Carved(smaller, {"schema": 1, **repair}, proof)


def proving(
    dense: nn.Module, sites: Mapping[str, Site], texts: Corpus, tokenizer: Any, max_length: int | None
) -> list[Mapping[str, Any]]:
    """Inputs on which gate and cut are compared: a few real batches, no larger than what they leave behind may be."""
    some = texts.sample(_PROOF_BATCHES * _PROOF_SIZE, 0)
    found = batches(some, tokenizer, model=dense, batch_size=_PROOF_SIZE, max_length=max_length)
    return [lightened(batch, sites.values()).inputs for batch in islice(found, _PROOF_BATCHES)]


def recover(
    recipe: Recipe, calibration: Calibration, smaller: nn.Module, untrained: Callable[[], Facts], kept: Path
) -> Facts:
    """Train a cut model in place as the recipe says; what `recovery.json` tells, or {} if nothing is to be trained.

    Args:
        recipe: how to train.
        calibration: the dense model, the task and the texts that decided, on which it is trained.
        smaller: the cut model.
        untrained: compares it with the dense model on the texts that judge, before it is trained.
        kept: the file where trained weights wait for the checkpoint; those that are there are taken.
    """
    if recipe.recover.kind == "none":
        return {}

    def train() -> Facts:
        before = {name: value for name, value in untrained().items() if name in _UNTRAINED}
        dense, task, texts = calibration.model, calibration.task, calibration.batches
        told = recipe.recover.train(dense, smaller, task, texts, seed=recipe.seed)
        return {"schema": 1, **told, "untrained": before}

    return trained(smaller, kept, train)
