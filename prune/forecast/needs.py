"""Needs: the memory that a run takes, from a model's shapes and the size of its texts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from headwise.analysis.capture import MEMORY
from headwise.analysis.corpus.batching import batches
from headwise.analysis.corpus.portions import map_bytes
from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site
from headwise.analysis.sites.projections import output_weight
from headwise.prune.free_memory import free_beside
from headwise.prune.importance.grouped import Grouped
from headwise.prune.importance.passes import Passes
from headwise.prune.importance.priced import HELD
from headwise.prune.importance.resampled import GROUPS
from headwise.prune.material import Material
from headwise.prune.proof import MOST_SEEN
from headwise.prune.proof.precision import AT_ONCE, layers_of
from headwise.prune.recipe import Recipe
from headwise.prune.report.formats import size
from headwise.prune.tasks.text_classification import is_classifier

log = logging.getLogger("headwise")

#: What is smaller in bytes is not looked at: it fits wherever the model does.
_SMALL = 2**30
#: Texts whose length is looked at.
_LOOKED_AT = 256
#: Bytes that the libraries themselves take.
_LIBRARIES = 450 * 2**20
#: Numbers that a backward pass keeps per token: of every width in a layer, of the vocabulary.
_KEPT, _LOGITS = 14, 3


@dataclass(frozen=True)
class Texts:
    """How many texts of each part there are, and how long they are in tokens, on average and at most.

    Attributes:
        calibration: texts that decide.
        evaluation: texts that judge.
        mean: tokens a text.
        longest: tokens of the longest.
    """

    calibration: int
    evaluation: int
    mean: float
    longest: int

    @classmethod
    def of(cls, material: Material, recipe: Recipe, model: nn.Module, reader: Any) -> Texts | None:
        """Of texts that are there; None where they have no tokens."""
        if not hasattr(reader, "all_special_ids"):
            return None
        some = material.calibration.sample(_LOOKED_AT, recipe.seed)
        found = getattr(batches(some, reader, model=model, max_length=recipe.data.max_length), "lengths", [])
        if not found:
            return None
        return cls(len(material.calibration), len(material.evaluation), sum(found) / len(found), max(found))


@dataclass(frozen=True)
class Needs:
    """What a run takes.

    Attributes:
        recipe: with batch size and methods.
        model: with shapes, weights or not.
        sites: its sites.
        width: bytes a weight.
        texts: how many and how long.
    """

    recipe: Recipe
    model: nn.Module
    sites: Mapping[str, Site]
    width: int
    texts: Texts

    @property
    def heads(self) -> int:
        """Heads of the whole model."""
        return sum(site.heads for site in self.sites.values())

    def weights(self) -> int:
        """Bytes of the weights."""
        return self.width * sum(p.numel() for p in self.model.parameters())

    def little(self) -> bool:
        """Whether weights and moments, which no text makes larger, fit wherever the model does."""
        return self.weights() + self.moments() < _SMALL

    def moments(self) -> int:
        """Bytes of the sums that scores and repair rest on: they grow with the square of the width."""
        return self._contexts() + self._slopes()

    def shapes(self) -> list[tuple[int, int]]:
        """Rows and columns of every site's output projection."""
        found = [output_weight(self.model, site).shape for site in self.sites.values()]
        return [(int(out), int(columns)) for out, columns in found]

    def _contexts(self) -> int:
        used = self.recipe.compensate.kind != "none" or self.recipe.score.kind in ("reconstruction", "variance")
        used = used or self.recipe.score.kind == "activation"
        # Of the texts that fit, and of those that are held out; by group of texts, too, where that is little.
        number = 2 * 8 + (GROUPS * 4 if self.grouped() else 0)
        return number * sum(columns**2 for _, columns in self.shapes()) if used else 0

    def _slopes(self) -> int:
        if self.recipe.score.kind != "reconstruction" or getattr(self.recipe.score, "weight", "none") == "none":
            return 0
        number = 8 + (GROUPS * 4 if self.grouped() else 0)
        return number * sum(out**2 for out, _ in self.shapes())

    def learns(self) -> bool:
        """Whether all weights are trained after the cut."""
        return self.recipe.recover.kind != "none" and self.recipe.recover.lora is None

    def grouped(self) -> bool:
        """Whether moments are kept by group of texts, too."""
        return self.recipe.score.kind == "reconstruction" and Grouped.fits(self.shapes())

    def memory(self) -> dict[str, int]:
        """Bytes by what they are for; not all at the same time."""
        attention = self.width * sum(
            p.numel() for path in {site.module for site in self.sites.values()}
            for p in self.model.get_submodule(path).parameters()
        )  # fmt: skip
        whole = self.recipe.recover.kind != "none"
        return {
            "libraries": _LIBRARIES,
            "weights": self.weights(),
            # The cut model shares what is no attention with the dense one, unless it is trained.
            "weights_of_the_cut_model": self.weights() if whole else attention,
            "maps_of_one_batch": min(2 * MEMORY, self._batch() * map_bytes(self.heads, self.texts.longest))
            + 8 * self.heads**2 * 12,
            "moments": self.moments(),
            "one_backward_pass": self._graph(),
            "one_block_of_the_decision": 10 * 8 * max((c**2 for _, c in self.shapes()), default=0)
            + min(HELD, (7 if self.grouped() else 1) * 2 * 8 * sum(c**2 for _, c in self.shapes())),
            "corrections": self._corrections(),
            "training": self._training(),
            "proof": self._proof(),
        }  # fmt: skip

    def peak(self) -> int:
        """The most bytes at one time."""
        part = self.memory()
        held = part["libraries"] + part["weights"]
        collecting = part["moments"] + max(part["one_backward_pass"], part["one_block_of_the_decision"])
        repairing = self._contexts() + part["corrections"] + part["one_backward_pass"]
        carved = self._contexts() + part["weights_of_the_cut_model"]
        # In the end the cut model is read back from the disk.
        proving = carved + max(part["proof"], part["weights"], part["maps_of_one_batch"])
        training = carved + part["training"] + part["one_backward_pass"]
        return held + max(part["maps_of_one_batch"], collecting, repairing, proving, training)

    def _batch(self) -> int:
        return min(self.recipe.data.batch_size, max(self.texts.calibration, 1))

    def _graph(self) -> int:
        if not self._backward():
            return 0
        tokens = self._batch() * self.texts.longest
        per_layer = sum(site.heads * site.head_dim for site in self.sites.values())
        logits = _LOGITS * 4 * self.vocabulary()
        return tokens * (_KEPT * per_layer * self.width + logits)

    def _backward(self) -> bool:
        passes = self.passes()
        recipe = self.recipe
        return any(passes.ask(method).back for method in (recipe.score, recipe.compensate, recipe.recover))

    def passes(self) -> Passes:
        """Those over the calibration texts, of which none is made yet."""
        count = -(-self.texts.calibration // self._batch())
        return Passes(self.sites, self.texts.calibration, count, is_classifier(self.model))

    def vocabulary(self) -> int:
        """Words that the model has scores for; 0 if it has none."""
        found = getattr(self.model, "get_output_embeddings", lambda: None)()
        weight = getattr(found, "weight", None)
        return 0 if weight is None else int(weight.shape[0])

    def _scored(self) -> bool:
        """Whether the default repair goes on after least squares: outputs are scores of whole texts."""
        return self.recipe.compensate.kind == "reconstruction" and is_classifier(self.model)

    def refits(self) -> bool:
        """Whether the repair refits the values of heads that stay, too."""
        repair = self.recipe.compensate
        return repair.kind == "reconstruction" and bool(repair.goes_on(self._scored())[1])

    def share(self) -> float:
        """What part of the heads goes, as far as that is known before scores are: else half."""
        asked = self.recipe.remove
        known = self.recipe.reach is None and not asked.metered
        return min(1.0, asked.count(self.sites) / max(self.heads, 1)) if known else 0.5

    def _corrections(self) -> int:
        columns = sum(c for _, c in self.shapes())
        return self.texts.calibration * 16 * 4 * columns if self._scored() else 0

    def _training(self) -> int:
        """Gradients, the best weights so far, and two moments of gradients; half precision learns by float32 copies."""
        if not self.learns():
            return 0
        numbers = sum(p.numel() for p in self.model.parameters())
        # Copy, its gradient and both moments, where the weights themselves are too narrow to step on.
        return 2 * self.weights() + numbers * (16 if self.width < 4 else 2 * self.width)

    def _proof(self) -> int:
        sizes = [p.numel() for p in self.model.parameters()]
        layers = [sum(p.numel() for p in layer.parameters()) for layer in layers_of(self.model)]
        one_by_one = layers and 4 * sum(sizes) > AT_ONCE
        numbers = sum(sizes) - sum(layers) + max(layers) if one_by_one else sum(sizes)
        seen = 12 * sum(c for _, c in self.shapes()) * min(8, self.texts.calibration) * self.texts.longest
        return (4 if self.width < 4 else 2) * numbers + min(MOST_SEEN, seen)


def needs_of(
    recipe: Recipe, model: nn.Module, sites: Mapping[str, Site], material: Material, reader: Any
) -> Needs | None:
    """What a run takes of a model that is open; None where it is little, or the inputs are no texts."""
    if any(parameter.is_meta for parameter in model.parameters()):
        return None  # put out to disk: nothing of it is held
    needs = Needs(recipe, model, sites, next(model.parameters()).element_size(), Texts(0, 0, 0.0, 0))
    # Before any text is looked at: most models are small.
    texts = None if needs.little() else Texts.of(material, recipe, model, reader)
    return None if texts is None else replace(needs, texts=texts)


def require_memory(needs: Needs | None) -> None:
    """Return if it is not known, or what surely is held at one time fits the memory that is free, the weights being there already.

    Warns where it fits, and the largest that the run is expected to take does not.

    Raises:
        BadInput: with what would be needed for what, and what does without.
    """
    if needs is None or needs.little():
        return
    part = needs.memory()
    surely = part["moments"] + part["weights_of_the_cut_model"]
    free, expected = free_beside(needs.model), needs.peak() - part["libraries"] - part["weights"]
    if free is None or expected <= free:
        return
    told = ", ".join(
        f"{size(part[name])} for {name.replace('_', ' ')}"
        for name in ("moments", "weights_of_the_cut_model", "one_backward_pass", "training", "proof") if part[name]
    )  # fmt: skip
    needed = (
        f"about {size(expected)} are needed at one time beside the weights ({told}), and {size(free)} are free. Moments "
        "grow with the square of the width, times the number of sites; score: {kind: gradient} with compensate: {kind: "
        "none} does without them. A pass back shrinks with data.batch_size and data.max_length; --device auto spreads "
        "the model over all devices"
    )
    if surely > free:
        raise BadInput(f"not enough memory: {needed}")
    log.warning("memory may not suffice: %s", needed)
