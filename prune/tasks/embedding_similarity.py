"""Task: how well the cosine of two texts' embeddings orders pairs as people do (STS, Agirre 2012)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch, batches
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.errors import BadInput
from headwise.prune.tasks.embeddings import Pooling, embed, embed_all, own_pooling
from headwise.prune.tasks.outcome import Outcome
from headwise.prune.tasks.ranked import Correlation, numbers_of, ranked_outcome


class EmbeddingSimilarity(BaseModel):
    """Correlation of the cosine of text and pair with the label."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    #: What it tells from one another: texts of which all are the same judge little (`one_label`).
    tells_apart: ClassVar[str] = "label"

    kind: Literal["embedding-similarity"] = "embedding-similarity"
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
    ) -> FittedSimilarity:
        """The task with the range of the calibration labels, which losses bring to that of a cosine.

        Raises:
            BadInput: a text has no pair, or a label that is no number.
        """
        _check(calibration)
        labels = numbers_of(calibration)
        span = (float(labels.min()), float(labels.max()))
        return FittedSimilarity(self.metric, own_pooling(model), tokenizer, span, batch_size, max_length)


@dataclass(frozen=True, eq=False)
class FittedSimilarity:
    """How texts are embedded, and the range of labels."""

    metric: Correlation
    pooling: Pooling
    tokenizer: Any
    span: tuple[float, float]
    batch_size: int = 32
    max_length: int | None = None

    def losses(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        """Squared error of each pair's cosine against its label, brought to the range 0 to 1."""
        low, high = self.span
        first, second = (self._vectors(model, side) for side in sides(batch.texts))
        cosine = nn.functional.cosine_similarity(first, second)
        right = torch.tensor([float(text.label or 0) for text in batch.texts], device=cosine.device)
        return (cosine - (right - low) / ((high - low) or 1.0)) ** 2

    def judge(self, model: nn.Module, corpus: Corpus) -> Outcome:
        """The correlation over the corpus's pairs.

        Raises:
            BadInput: a text has no pair, or a label that is no number.
        """
        _check(corpus)
        right = numbers_of(corpus)
        first, second = (
            embed_all(
                model,
                batches(
                    replace(corpus, texts=side), self.tokenizer, model=model, batch_size=self.batch_size,
                    max_length=self.max_length,
                ),
                self.pooling,
            ).astype(np.float64)
            for side in sides(corpus.texts)
        )  # fmt: skip
        norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        cosine = (first * second).sum(1) / np.maximum(norms, 1e-12)
        seen = ~np.isnan(cosine)
        texts = [text for text, ok in zip(corpus.texts, seen, strict=True) if ok]
        skipped = {"no token": int((~seen).sum())} if not seen.all() else {}
        return ranked_outcome("embedding-similarity", self.metric, right[seen], cosine[seen], texts, skipped)

    def _vectors(self, model: nn.Module, texts: list[Text]) -> Float[Tensor, "batch width"]:
        """Embeddings in the order of the texts, with gradient, in one batch."""
        found = batches(
            Corpus(texts), self.tokenizer, model=model, batch_size=len(texts), max_length=self.max_length, sort=False
        )
        return torch.cat([embed(model, batch, self.pooling) for batch in found])


def sides(texts: Any) -> tuple[list[Text], list[Text]]:
    """The texts and their pairs, each by themselves.

    >>> [side[0].text for side in sides([Text("a", "b")])]
    ['a', 'b']
    """
    return [Text(text.text) for text in texts], [Text(text.pair or "") for text in texts]


def _check(corpus: Corpus) -> None:
    if any(text.pair is None for text in corpus.texts):
        raise BadInput(f"{corpus.source}: similarity needs a second text beside each; name its column (`pair:`)")
