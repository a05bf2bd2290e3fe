"""Task: the class of a text, or of a pair of texts, by the checkpoint's own classification head."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch, batches
from headwise.analysis.corpus.texts import Corpus, Label
from headwise.analysis.errors import BadInput
from headwise.analysis.progress import track
from headwise.analysis.sites.class_names import named_for
from headwise.prune.tasks.in_numbers import in_numbers
from headwise.prune.tasks.labels import label_numbers
from headwise.prune.tasks.metrics import METRICS, MetricName, value_of
from headwise.prune.tasks.outcome import Outcome, judging


class TextClassification(BaseModel):
    """Any sequence-classification checkpoint on labelled texts or pairs."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    #: What it tells from one another: texts of which all are the same judge little (`one_label`).
    tells_apart: ClassVar[str] = "label"

    kind: Literal["text-classification"] = "text-classification"
    metric: MetricName = Field(default="accuracy", description="what is reported")
    labels: dict[str, int | str] = Field(
        default={}, description="label of the data: the model's label (name or number), where names do not say it"
    )

    def fit(
        self,
        model: nn.Module,
        tokenizer: Any,
        calibration: Corpus,
        *,
        batch_size: int = 32,
        max_length: int | None = None,
        seed: int = 0,
    ) -> FittedClassification:
        """The task with its labels matched to the model's outputs.

        Raises:
            BadInput: the model has no head with at least two classes, or a label is not one of the model's.
        """
        config: Any = model.config
        if not is_classifier(model) or config.num_labels < 2:
            raise BadInput(
                f"{type(model).__name__} has no classification head of two or more classes: load a "
                "sequence-classification checkpoint, or use task: {kind: embedding-probe} or {kind: agreement}"
            )
        fitted = FittedClassification(self, config, tokenizer, calibration.label_names, batch_size, max_length)
        fitted.numbers(calibration)
        return fitted


@runtime_checkable
class Classifies(Protocol):
    """A task of naming one class: of texts, images or clips."""

    @property
    def kind(self) -> str:
        """Of the task."""
        ...

    @property
    def metric(self) -> MetricName:
        """What is reported."""
        ...

    @property
    def labels(self) -> Mapping[str, int | str]:
        """Label of the data to the model's, where names do not say it."""
        ...


def is_classifier(model: nn.Module) -> bool:
    """Whether the model's class, or one that it derives from, is a sequence classifier.

    >>> is_classifier(nn.Linear(2, 2))
    False
    """
    return named_for(model, "ForSequenceClassification")


@contextlib.contextmanager
def pad_known(model: nn.Module, pad_id: int | None) -> Iterator[None]:
    """Tell the config which token fills up, inside the block: decoders look for the last one that does not."""
    if pad_id is None:
        yield
        return
    config: Any = model.config
    parts = {id(part): part for part in (config, config.get_text_config())}.values()
    missing = [part for part in parts if getattr(part, "pad_token_id", None) is None]
    # Configurations of models that read no tokens have no such field at all, and shall have none afterwards.
    bare = {id(part) for part in missing if not hasattr(part, "pad_token_id")}
    for part in missing:
        part.pad_token_id = pad_id
    try:
        yield
    finally:
        for part in missing:
            if id(part) in bare:
                del part.pad_token_id
            else:
                part.pad_token_id = None


@dataclass(frozen=True, eq=False)
class FittedClassification:
    """Labels matched to outputs, and how texts become batches."""

    task: Classifies
    config: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    label_names: tuple[str, ...] = ()
    batch_size: int = 32
    max_length: int | None = None

    def numbers(self, corpus: Corpus) -> dict[Label, int]:
        """Output number of each of the corpus's labels.

        Raises:
            BadInput: no labels, or labels that the model does not have.
        """
        if not corpus.labels or any(text.label is None for text in corpus.texts):
            raise BadInput(
                f"{corpus.source}: {self.task.kind} needs a label on every example; name the label column, "
                "or use task: {kind: agreement}"
            )
        return label_numbers(corpus.labels, self.config, corpus.label_names, self.task.labels)

    def losses(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        """Cross entropy of each text's label."""
        known = label_numbers(
            list(dict.fromkeys(text.label for text in batch.texts if text.label is not None)),
            self.config,
            self.label_names,
            self.task.labels,
        )
        logits = self._logits(model, batch)
        right = torch.tensor([known[text.label] for text in batch.texts if text.label is not None])
        return nn.functional.cross_entropy(logits, right.to(logits.device), reduction="none")

    def judge(self, model: nn.Module, corpus: Corpus) -> Outcome:
        """The outcome on the corpus: right or wrong, text by text."""
        numbers = self.numbers(corpus)
        found = batches(corpus, self.tokenizer, model=model, batch_size=self.batch_size, max_length=self.max_length)
        logits = np.full((len(corpus), self.config.num_labels), np.nan, dtype=np.float32)
        with judging(model):
            for batch in track(found, len(found), "classifying"):
                logits[list(batch.index)] = in_numbers(self._logits(model, batch), batch).cpu().numpy()
        seen = np.asarray(~np.isnan(logits).all(axis=1))
        texts = [text for text, ok in zip(corpus.texts, seen, strict=True) if ok]
        right = np.array([numbers[text.label] for text in texts if text.label is not None])
        said = logits[seen].argmax(-1)
        names = {int(number): str(name) for number, name in self.config.id2label.items()}
        return Outcome(
            kind=self.task.kind,
            metric=self.task.metric,
            value=value_of(self.task.metric, right, said),
            per_example=(said == right).astype(np.float64),
            higher_is_better=True,
            texts=texts,
            predictions=[names[int(i)] for i in said],
            labels=[names[int(i)] for i in right],
            rows=np.stack([right, said], axis=1),
            measure=METRICS[self.task.metric],
            probabilities=torch.from_numpy(logits[seen]).softmax(-1).numpy(),
            skipped={"no token": found.skipped} if found.skipped else {},
        )

    def _logits(self, model: nn.Module, batch: Batch) -> Float[Tensor, "batch label"]:
        with pad_known(model, pad_id(batch)):
            logits: Tensor = model(**batch.inputs).logits
        return logits.float()


def pad_id(batch: Batch) -> int | None:
    """The token that fills up this batch; 0 where nothing is filled up, None where nothing is read."""
    tokens = batch.tokens.get("")
    if tokens is None:
        return None
    padding = tokens.ids[~tokens.valid]
    return int(padding[0]) if len(padding) else 0
