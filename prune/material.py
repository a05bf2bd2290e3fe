"""Material: the texts of a run, in parts that share nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headwise.analysis.corpus.texts import Corpus, disjoint
from headwise.analysis.errors import BadInput
from headwise.prune.recipe.parts import Data
from headwise.prune.tasks.one_label import one_label

#: The part of the calibration texts that judges candidates of a search.
SELECTION = 0.2
# What is judged at most where the recipe names no evaluation: half of a large set would take hours, twice.
_JUDGED = 2000
# By so many texts a tokenizer is known again.
_TOKENISED = 64


@dataclass(frozen=True)
class Material:
    """Calibration decides, selection judges candidates of a search, evaluation judges the result.

    Attributes:
        calibration: texts for evidence, scores and repair.
        evaluation: texts that decide nothing.
        overlap: how many texts left calibration because they are in the evaluation, too.
        truncated: how many texts of a part are longer than what the model reads, where that was counted.
        tokens: names what the tokenizer makes of the first texts; "" where that was not asked.
    """

    calibration: Corpus
    evaluation: Corpus
    overlap: int
    truncated: Mapping[str, int] = field(default_factory=dict)
    tokens: str = ""

    def facts(self) -> dict[str, Any]:
        """Source, count, hash and skips of each part, for the record."""
        parts = {"calibration": self.calibration.summary(), "evaluation": self.evaluation.summary()}
        parts["calibration"]["overlap_removed"] = self.overlap
        parts["calibration"] |= {"tokens": self.tokens} if self.tokens else {}
        for name, count in self.truncated.items():
            parts[name]["truncated"] = count
        return parts

    def measured(self, model: Any, tokenizer: Any, max_length: int | None, task: Any = None) -> Material:
        """The same, with how many texts are cut off at what the model reads, and with notes; warnings tell the user."""
        from headwise.prune.tasks import choose_task
        from headwise.prune.tasks.overlong import overlong

        parts = {"calibration": self.calibration, "evaluation": self.evaluation}
        truncated = overlong(model, tokenizer, parts, max_length=max_length, task=task)
        kind = (task or choose_task(model, tokenizer, self.calibration)).kind
        noted: dict[str, Any] = {
            name: replace(part, notes=(*part.notes, *one_label(part, name, kind))) for name, part in parts.items()
        }
        tokens = tokens_of(self.calibration, model, tokenizer, max_length)
        return replace(self, truncated=truncated, tokens=tokens, **noted)

    def selection(self, seed: int) -> tuple[Corpus, Corpus]:
        """Calibration without, and the fifth of it that a search judges its candidates on."""
        second, first = self.calibration.split(SELECTION, seed)
        return first, second

    def parts(self, seed: int) -> tuple[Material, Corpus]:
        """The same with a smaller calibration, and the texts that candidates of a search are judged on."""
        calibration, selection = self.selection(seed)
        return replace(self, calibration=calibration), selection


def tokens_of(corpus: Corpus, model: Any, tokenizer: Any, max_length: int | None) -> str:
    """Sixteen hex digits that name what a tokenizer or processor makes of texts, images and clips.

    That is what it makes of the first texts and where it cuts them off, the settings of a processor, and all words, also
    those of the tokenizer inside a processor: what a model writes is read by them.
    """
    from headwise.analysis.corpus.batching import batches

    first = replace(corpus, texts=corpus.texts[:_TOKENISED])
    made = batches(first, tokenizer, model=model, max_length=max_length)
    settings = tokenizer.to_json_string() if hasattr(tokenizer, "to_json_string") else ""
    inner = getattr(tokenizer, "tokenizer", tokenizer)
    words = sorted(inner.get_vocab().items()) if hasattr(inner, "get_vocab") else []
    told = f"{made.mark} {made.limit} {settings} {words}"
    return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def gather(data: Data, seed: int) -> Material:
    """Read, split and draw the texts of a run.

    Where the recipe names no evaluation, the calibration's source is split in two halves by content hash, and
    at most 2,000 texts of the second are judged.

    Raises:
        BadInput: if texts cannot be read, are too few, or the two parts overlap by more than a few.
    """
    found = data.calibration.read()
    if data.evaluation is None:
        calibration, evaluation = found.split(0.5, seed)
        wanted: int | None = _JUDGED
    else:
        calibration, evaluation = found, data.evaluation.read()
        wanted = data.evaluation.samples
    calibration, overlap = disjoint(calibration, evaluation)
    if data.calibration.samples is not None and data.calibration.samples < len(calibration):
        calibration = calibration.sample(data.calibration.samples, seed)
    if wanted is not None and wanted < len(evaluation):
        evaluation = evaluation.sample(wanted, seed)
    for name, part in (("calibration", calibration), ("evaluation", evaluation)):
        if len(part) < 2:
            raise BadInput(f"data.{name}: {part.source} gives {len(part)} texts, expected at least 2")
    return Material(calibration, evaluation, overlap)
