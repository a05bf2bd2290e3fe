"""Task without labels: does the cut model say what the dense model says?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch, batches
from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.errors import BadInput
from headwise.analysis.progress import track
from headwise.prune.tasks.embeddings import Pooling, contrast, embed, embed_all, own_pooling
from headwise.prune.tasks.in_numbers import in_numbers
from headwise.prune.tasks.outcome import Outcome, judging
from headwise.prune.tasks.text_classification import pad_id, pad_known

#: Texts that a base model's loss tells a text from.
_OTHERS = 512


class Agreement(BaseModel):
    """The share of equal predictions (per text or per token); for a base model the cosine of its embeddings.

    A model agrees with itself: an outcome alone has the value 1, `compare` says how two models agree. The
    KL divergence from the dense to the cut model's distribution is reported beside it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["agreement"] = "agreement"

    def fit(
        self,
        model: nn.Module,
        tokenizer: Any,
        calibration: Corpus,
        *,
        batch_size: int = 32,
        max_length: int | None = None,
        seed: int = 0,
    ) -> FittedAgreement:
        """The task with what the dense model says of the calibration texts."""
        pooling = own_pooling(model)
        found = batches(calibration, tokenizer, model=model, batch_size=batch_size, max_length=max_length)
        told: dict[str, Tensor] = {}
        with judging(model):
            headed = _has_head(model, next(iter(found)))
            if headed:
                for batch in track(found, len(found), "asking the dense model"):
                    told.update(_spoken(batch, model))
        table: Tensor | None = None
        if not headed:
            vectors = torch.from_numpy(embed_all(model, found, pooling))
            told = {t.id: v for t, v in zip(calibration.texts, vectors, strict=True) if not v.isnan().any()}
            names = list(told)
            generator = torch.Generator().manual_seed(seed)
            chosen = torch.randperm(len(names), generator=generator)[:_OTHERS].tolist()
            told = {names[i]: told[names[i]] for i in chosen} | told
            table = torch.stack([told[names[i]] for i in chosen])
        return FittedAgreement(self, headed, pooling, tokenizer, told, table, batch_size, max_length)


@dataclass(frozen=True, eq=False)
class FittedAgreement:
    """What the dense model said of the calibration texts, and how predictions are read."""

    task: Agreement
    headed: bool
    pooling: Pooling
    tokenizer: Any = field(repr=False)
    told: dict[str, Tensor] = field(repr=False)
    table: Float[Tensor, "text width"] | None = field(repr=False, default=None)
    batch_size: int = 32
    max_length: int | None = None

    def asked(self, dense: nn.Module, texts: Iterable[Batch]) -> FittedAgreement:
        """The same with what the dense model says of more texts; those it tells a text from stay the same."""
        told: dict[str, Tensor] = {}
        with judging(dense):
            for batch in texts:
                if self.headed:
                    told.update(_spoken(batch, dense))
                else:
                    vectors = embed(dense, batch, self.pooling).float().cpu()
                    told.update((text.id, vector) for text, vector in zip(batch.texts, vectors, strict=True))
        return replace(self, told=told | self.told)

    def losses(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        """Cross entropy of what the dense model thought most likely; for base models, of finding its embedding.

        Not the KL divergence: that is at its minimum on the dense model, so its gradient is 0 there.

        Raises:
            BadInput: a text that was neither among the calibration texts nor asked about since.
        """
        unknown = [text.text[:60] for text in batch.texts if text.id not in self.told]
        if unknown:
            raise BadInput(f"losses of texts that the dense model was not asked about: {unknown[0]!r}, …")
        if not self.headed:
            return self._base_losses(model, batch)
        logits = _logits(model, batch)
        if logits.ndim == 2:
            targets = torch.stack([self.told[text.id] for text in batch.texts]).to(logits.device)
            return nn.functional.cross_entropy(logits, targets.reshape(-1), reduction="none")
        valid = _valid(logits, batch)
        targets = torch.full(valid.shape, -100, device=logits.device)
        targets[valid] = torch.cat([self.told[text.id] for text in batch.texts]).to(logits.device)
        nats = nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        return nats.sum(-1) / valid.sum(-1)

    def _base_losses(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        vectors = embed(model, batch, self.pooling)
        own = torch.stack([self.told[text.id] for text in batch.texts]).to(vectors.device)
        others = self.table if self.table is not None else own
        others = others.to(vectors.device)
        same = (own.unsqueeze(1) == others.unsqueeze(0)).all(-1)
        return contrast(vectors, own, others, same)

    def judge(self, model: nn.Module, corpus: Corpus) -> Outcome:
        """What the model says of the corpus; the value is 1 until `compare` sets two outcomes side by side."""
        found = batches(corpus, self.tokenizer, model=model, batch_size=self.batch_size, max_length=self.max_length)
        said: dict[int, np.ndarray] = {}
        chances: dict[int, np.ndarray] = {}
        with judging(model):
            for batch in track(found, len(found), "reading predictions"):
                self._read(model, batch, said, chances)
        order = sorted(said)
        predictions: list[Any] = [said[i] for i in order]
        if chances:
            predictions = [_named(model, int(found.item())) for found in predictions]
        return Outcome(
            kind=self.task.kind,
            metric="agreement" if self.headed else "cosine",
            value=1.0,
            per_example=np.ones(len(order)),
            higher_is_better=True,
            texts=[corpus.texts[i] for i in order],
            predictions=predictions,
            probabilities=np.stack([chances[i] for i in order]) if chances else None,
            skipped={"no token": found.skipped} if found.skipped else {},
        )

    def _read(
        self, model: nn.Module, batch: Batch, said: dict[int, np.ndarray], chances: dict[int, np.ndarray]
    ) -> None:
        if not self.headed:
            vectors = in_numbers(embed(model, batch, self.pooling), batch).float().cpu().numpy()
            said.update(zip(batch.index, vectors, strict=True))
            return
        logits = in_numbers(_logits(model, batch), batch)
        if logits.ndim == 2:
            chances.update(zip(batch.index, logits.softmax(-1).cpu().numpy(), strict=True))
        said.update(zip(batch.index, (ids.numpy() for ids in _most_likely(logits, batch)), strict=True))


def _named(model: nn.Module, index: int) -> str:
    """A class by its name, or by its number where the model's names do not tell classes apart."""
    names = getattr(getattr(model, "config", None), "id2label", None) or {}
    return str(names[index]) if index in names and len(set(names.values())) == len(names) else str(index)


def token_divergence(dense: nn.Module, cut: nn.Module, fitted: FittedAgreement, corpus: Corpus) -> float:
    """Mean KL divergence, in nats per token, from the dense to the cut model's distributions.

    Needs both models at once, because the distributions over a vocabulary are too large to keep.
    """
    found = batches(corpus, fitted.tokenizer, model=dense, batch_size=fitted.batch_size, max_length=fitted.max_length)
    total, count = 0.0, 0
    with judging(dense), judging(cut):
        for batch in track(found, len(found), "comparing distributions"):
            first, second = (_logits(model, batch).log_softmax(-1) for model in (dense, cut))
            divergence = nn.functional.kl_div(second, first, reduction="none", log_target=True).sum(-1)
            if divergence.ndim == 2:
                divergence = divergence[_valid(first, batch)]
            total, count = total + float(divergence.double().sum()), count + divergence.numel()
    return total / max(1, count)


def _valid(logits: Tensor, batch: Batch) -> Bool[Tensor, "batch token"]:
    """Which of the positions that the head answers for are no padding; images and clips have none."""
    tokens = batch.tokens.get("decoder") or batch.tokens.get("")
    if tokens is None:
        return torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)
    return tokens.valid.to(logits.device)


def _has_head(model: nn.Module, batch: Batch) -> bool:
    with pad_known(model, pad_id(batch)):
        return getattr(model(**batch.inputs), "logits", None) is not None


def _logits(model: nn.Module, batch: Batch) -> Tensor:
    with pad_known(model, pad_id(batch)):
        logits: Tensor = model(**batch.inputs).logits
    return logits.float()


def _most_likely(logits: Tensor, batch: Batch) -> list[Int[Tensor, " token"]]:
    """Per text the most likely class, or that of each of its tokens."""
    likely = logits.argmax(-1).cpu()
    if likely.ndim == 1:
        return list(likely.unsqueeze(-1))
    valid = _valid(logits, batch).cpu()
    # A head that answers for something other than each token (a pair of spans, say) would not fit the mask.
    if likely.shape != valid.shape:
        raise BadInput(
            f"a head with outputs of shape {tuple(logits.shape)} for {tuple(valid.shape)} tokens cannot be "
            "judged by agreement; load the base model to judge its embeddings"
        )
    return [row[ok] for row, ok in zip(likely, valid, strict=True)]


def _spoken(batch: Batch, model: nn.Module) -> dict[str, Tensor]:
    likely = _most_likely(in_numbers(_logits(model, batch), batch), batch)
    return {text.id: ids.clone() for text, ids in zip(batch.texts, likely, strict=True)}
