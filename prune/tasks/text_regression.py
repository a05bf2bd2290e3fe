"""Task: a number for a text, or for a pair of texts, by the checkpoint's own head of one output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch, batches
from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.errors import BadInput
from headwise.analysis.progress import track
from headwise.prune.tasks.in_numbers import in_numbers
from headwise.prune.tasks.outcome import Outcome, judging
from headwise.prune.tasks.ranked import Correlation, numbers_of, ranked_outcome
from headwise.prune.tasks.text_classification import is_classifier, pad_id, pad_known


class TextRegression(BaseModel):
    """How well the head's number correlates with the label (similarity, rating, relevance)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    #: What it tells from one another: texts of which all are the same judge little (`one_label`).
    tells_apart: ClassVar[str] = "label"

    kind: Literal["text-regression"] = "text-regression"
    metric: Correlation = Field(default="spearman", description="what is reported")

    def fit(
        self,
        model: nn.Module,
        tokenizer: Any,
        calibration: Corpus,
        *,
        batch_size: int = 32,
        max_length: int | None = None,
        seed: int = 0,
    ) -> FittedRegression:
        """The task, once head and labels are found to fit.

        Raises:
            BadInput: the model has no head with one output, or a label is no number.
        """
        config: Any = model.config
        if not is_classifier(model) or config.num_labels != 1:
            raise BadInput(
                f"{type(model).__name__} has no head with one output; use task: {{kind: text-classification}}"
            )
        numbers_of(calibration)
        return FittedRegression(self.metric, tokenizer, batch_size, max_length)


@dataclass(frozen=True, eq=False)
class FittedRegression:
    """How texts become batches."""

    metric: Correlation
    tokenizer: Any = field(repr=False)
    batch_size: int = 32
    max_length: int | None = None

    def losses(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        """Squared error of each text."""
        said = self._said(model, batch)
        right = torch.tensor([float(text.label or 0) for text in batch.texts], device=said.device)
        return (said - right) ** 2

    def judge(self, model: nn.Module, corpus: Corpus) -> Outcome:
        """The correlation over the corpus.

        Raises:
            BadInput: a label is no number.
        """
        right = numbers_of(corpus)
        found = batches(corpus, self.tokenizer, model=model, batch_size=self.batch_size, max_length=self.max_length)
        said = np.full(len(corpus), np.nan)
        with judging(model):
            for batch in track(found, len(found), "rating texts"):
                said[list(batch.index)] = in_numbers(self._said(model, batch), batch).double().cpu().numpy()
        seen = ~np.isnan(said)
        texts = [text for text, ok in zip(corpus.texts, seen, strict=True) if ok]
        skipped = {"no token": int((~seen).sum())} if not seen.all() else {}
        return ranked_outcome("text-regression", self.metric, right[seen], said[seen], texts, skipped)

    def _said(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        with pad_known(model, pad_id(batch)):
            logits: Tensor = model(**batch.inputs).logits
        return logits.float().squeeze(-1)
