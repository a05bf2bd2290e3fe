"""Task: find the passage that belongs to a text, by the cosine of sentence embeddings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch, batches
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.errors import BadInput
from headwise.prune.tasks.embeddings import Pooling, contrast, embed, embed_all, own_pooling
from headwise.prune.tasks.outcome import Outcome

_FEWEST_WORDS = 4
#: Passages that a loss tells the right one from.
_OTHERS = 512


class EmbeddingRetrieval(BaseModel):
    """Each text looks for its passage among all: its pair if it has one, else its own second half."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["embedding-retrieval"] = "embedding-retrieval"
    metric: Literal["accuracy@1", "mrr"] = Field(
        default="accuracy@1", description="right passage first, or the mean of one over its rank"
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
    ) -> FittedRetrieval:
        """The task with the dense embeddings of the calibration passages, which losses compare with.

        Raises:
            BadInput: fewer than two texts can be halved or have a pair.
        """
        pooling = own_pooling(model)
        _, passages = _sides(calibration)
        kept = replace(passages, texts=list(passages.texts)).sample(_OTHERS, seed, stratified=False)
        found = batches(kept, tokenizer, model=model, batch_size=batch_size, max_length=max_length)
        table = torch.from_numpy(embed_all(model, found, pooling))
        seen = ~table.isnan().any(-1)
        names = [text.text for text, ok in zip(kept.texts, seen.tolist(), strict=True) if ok]
        return FittedRetrieval(self, pooling, tokenizer, table[seen], tuple(names), batch_size, max_length)


@dataclass(frozen=True, eq=False)
class FittedRetrieval:
    """Pooling, and the dense embeddings of passages that losses tell the right one from."""

    task: EmbeddingRetrieval
    pooling: Pooling
    tokenizer: Any = field(repr=False)
    table: Float[Tensor, "passage width"] = field(repr=False)
    passages: tuple[str, ...] = field(repr=False)
    batch_size: int = 32
    max_length: int | None = None

    def losses(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        """Cross entropy of finding each text's passage among the calibration passages."""
        queries, passages = _sides(Corpus(batch.texts, "batch"), fewest=1)
        if len(queries) != len(batch.texts):
            raise BadInput("a text of under four words cannot be halved: leave it out of the calibration texts")
        first = self._embed(model, queries)
        own = self._embed(model, passages)
        names = [text.text for text in passages.texts]
        same = torch.tensor([[name == other for other in self.passages] for name in names])
        return contrast(first, own, self.table.to(first.device), same.to(first.device))

    def _embed(self, model: nn.Module, corpus: Corpus) -> Float[Tensor, "batch width"]:
        found = batches(
            corpus, self.tokenizer, model=model, batch_size=len(corpus), max_length=self.max_length, sort=False
        )
        return embed(model, next(iter(found)), self.pooling)

    def judge(self, model: nn.Module, corpus: Corpus) -> Outcome:
        """How often the passage comes first, or how early; ties count against the model.

        Raises:
            BadInput: fewer than two texts can be halved or have a pair.
        """
        queries, passages = _sides(corpus)
        first, second = (
            embed_all(
                model,
                batches(side, self.tokenizer, model=model, batch_size=self.batch_size, max_length=self.max_length),
                self.pooling,
            )
            for side in (queries, passages)
        )
        ranks = ranks_of(first, second, [text.text for text in passages.texts])
        scores = (ranks == 1).astype(np.float64) if self.task.metric == "accuracy@1" else 1.0 / ranks
        skipped = dict(queries.skipped)
        return Outcome(
            kind=self.task.kind,
            metric=self.task.metric,
            value=float(scores.mean()),
            per_example=scores,
            higher_is_better=True,
            texts=[replace(q, pair=p.text) for q, p in zip(queries.texts, passages.texts, strict=True)],
            predictions=[f"rank {rank}" for rank in ranks],
            skipped=skipped,
        )


def ranks_of(first: np.ndarray, second: np.ndarray, passages: list[str]) -> np.ndarray:
    """`[query]` rank of each query's passage by cosine, from 1; equal passages do not compete.

    >>> ranks_of(np.eye(2), np.eye(2)[::-1], ["a", "b"]).tolist()
    [2, 2]
    """
    unit = [side / np.maximum(np.linalg.norm(side, axis=1, keepdims=True), 1e-12) for side in (first, second)]
    groups = np.unique(passages, return_inverse=True)[1]
    ranks = np.empty(len(first), dtype=np.int64)
    for start in range(0, len(first), 1000):
        rows = np.arange(start, min(start + 1000, len(first)))
        similar = unit[0][rows] @ unit[1].T
        own = similar[np.arange(len(rows)), rows][:, None]
        rivals = groups[rows][:, None] != groups[None, :]
        ranks[rows] = 1 + ((similar >= own) & rivals).sum(axis=1)
    return ranks


def _sides(corpus: Corpus, fewest: int = 2) -> tuple[Corpus, Corpus]:
    """Queries and passages: text and pair, or the halves of the text by its words."""
    queries, passages, short = [], [], 0
    for text in corpus.texts:
        if text.pair is not None:
            query, passage = text.text, text.pair
        else:
            words = text.text.split()
            if len(words) < _FEWEST_WORDS:
                short += 1
                continue
            query, passage = " ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])
        queries.append(Text(query, label=text.label))
        passages.append(Text(passage, label=text.label))
    if len(queries) < fewest:
        raise BadInput(
            f"{corpus.source}: retrieval needs at least two texts of four or more words, or pairs; "
            f"got {len(queries)} ({short} too short)"
        )
    skipped = {"too short to halve": short} if short else {}
    return Corpus(queries, f"{corpus.source}, queries", skipped), Corpus(passages, f"{corpus.source}, passages")
