"""Task: which of several classes a text belongs to, any number of them, by the checkpoint's own head."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from sklearn import metrics as sk
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch, batches
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.errors import BadInput
from headwise.analysis.progress import track
from headwise.prune.tasks.in_numbers import in_numbers
from headwise.prune.tasks.labels import label_numbers
from headwise.prune.tasks.outcome import Outcome, judging
from headwise.prune.tasks.text_classification import is_classifier, pad_id, pad_known

#: A class is named where its own sigmoid says that it is likelier than not.
_THRESHOLD = 0.5


class MultiLabel(BaseModel):
    """F1 over the classes of all texts. A text's label is a list of classes (in one text: with blanks between)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    #: What it tells from one another: texts of which all are the same judge little (`one_label`).
    tells_apart: ClassVar[str] = "label"

    kind: Literal["multi-label"] = "multi-label"
    metric: Literal["micro-f1", "macro-f1"] = Field(default="micro-f1", description="what is reported")
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
    ) -> FittedMultiLabel:
        """The task with its labels matched to the model's outputs.

        Raises:
            BadInput: the model has no classification head, or a label is not one of the model's.
        """
        config: Any = model.config
        if not is_classifier(model) or config.num_labels < 2:
            raise BadInput(f"{type(model).__name__} has no classification head of two or more classes")
        fitted = FittedMultiLabel(self, config, tokenizer, batch_size, max_length)
        fitted.indicators(calibration.texts, calibration.source)
        return fitted


@dataclass(frozen=True, eq=False)
class FittedMultiLabel:
    """Labels matched to outputs, and how texts become batches."""

    task: MultiLabel
    config: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    batch_size: int = 32
    max_length: int | None = None

    def indicators(self, texts: Any, source: str = "texts") -> np.ndarray:
        """`[text, output]`, 1 where the class is one of the text's.

        Raises:
            BadInput: a text has no label at all, or one that is not the model's.
        """
        if any(text.label is None for text in texts):
            raise BadInput(f"{source}: every text needs its list of classes; name the label column")
        said = [_names(text) for text in texts]
        known = label_numbers(list({name: 0 for names in said for name in names}), self.config, (), self.task.labels)
        found = np.zeros((len(said), self.config.num_labels), dtype=np.int64)
        for row, names in zip(found, said, strict=True):
            row[[known[name] for name in names]] = 1
        return found

    def losses(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        """Binary cross entropy of each text, averaged over classes."""
        logits = self._logits(model, batch)
        right = torch.from_numpy(self.indicators(batch.texts)).to(logits)
        return nn.functional.binary_cross_entropy_with_logits(logits, right, reduction="none").mean(-1)

    def judge(self, model: nn.Module, corpus: Corpus) -> Outcome:
        """F1 over the corpus; an example's own score is its F1, 1 where nothing is right and nothing named."""
        right = self.indicators(corpus.texts, corpus.source)
        found = batches(corpus, self.tokenizer, model=model, batch_size=self.batch_size, max_length=self.max_length)
        chances = np.full(right.shape, np.nan, dtype=np.float64)
        with judging(model):
            for batch in track(found, len(found), "classifying texts"):
                logits = in_numbers(self._logits(model, batch), batch)
                chances[list(batch.index)] = logits.sigmoid().double().cpu().numpy()
        seen = np.asarray(~np.isnan(chances).any(axis=1))
        right, said = right[seen], (chances[seen] > _THRESHOLD).astype(np.int64)
        names = [str(self.config.id2label[i]) for i in range(self.config.num_labels)]
        measure = partial(f1, average=self.task.metric.removesuffix("-f1"))
        rows = np.concatenate([right, said], axis=1)
        return Outcome(
            kind="multi-label",
            metric=self.task.metric,
            value=measure(rows),
            per_example=np.asarray(sk.f1_score(right.T, said.T, average=None, zero_division=1), dtype=np.float64),
            higher_is_better=True,
            texts=[text for text, ok in zip(corpus.texts, seen, strict=True) if ok],
            predictions=[_joined(names, row) for row in said],
            labels=[_joined(names, row) for row in right],
            rows=rows,
            measure=measure,
            skipped={"no token": int((~seen).sum())} if not seen.all() else {},
        )

    def _logits(self, model: nn.Module, batch: Batch) -> Float[Tensor, "batch label"]:
        with pad_known(model, pad_id(batch)):
            logits: Tensor = model(**batch.inputs).logits
        return logits.float()


def f1(rows: np.ndarray, average: str) -> float:
    """F1 over all classes (`micro`), or its mean over them (`macro`); a class that nobody names counts as 0.

    Counted here: intervals ask for it thousands of times, and scikit-learn takes seventy times as long, half a minute
    for one comparison.

    Args:
        rows: `[text, 2 * class]`, 1 where a class is right, then 1 where it is said.
        average: `micro` or `macro`.

    >>> f1(np.array([[1, 0, 1, 1], [0, 1, 0, 1]]), "micro")
    0.8
    """
    right, said = np.split(rows > 0, 2, axis=1)
    hits, named = (right & said).sum(axis=0), right.sum(axis=0) + said.sum(axis=0)
    if average == "micro":
        hits, named = hits.sum(keepdims=True), named.sum(keepdims=True)
    return float((2 * hits / np.maximum(named, 1)).mean())


def _names(text: Text) -> list[str | int]:
    said = str(text.label).split() if text.label is not None else []
    return [int(name) if name.isdecimal() else name for name in said]


def _joined(names: list[str], row: np.ndarray) -> str:
    return " ".join(name for name, there in zip(names, row, strict=True) if there) or "(none)"
