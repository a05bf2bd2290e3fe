"""Task: the masked token, for masked language models."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch, batches
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.errors import BadInput
from headwise.analysis.progress import track
from headwise.analysis.sites.class_names import named_for
from headwise.prune.tasks.causal_lm import perplexity
from headwise.prune.tasks.outcome import Outcome, judging


class MaskedLM(BaseModel):
    """Perplexity of masked tokens: exp of all nats over all masked tokens (Devlin 2019, without random words).

    Which tokens are masked follows from the text and the seed alone, so every model sees the same gaps.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["masked-lm"] = "masked-lm"
    share: Annotated[float, Field(gt=0, lt=1)] = Field(default=0.15, description="of tokens that are masked")

    def fit(
        self,
        model: nn.Module,
        tokenizer: Any,
        calibration: Corpus,
        *,
        batch_size: int = 32,
        max_length: int | None = None,
        seed: int = 0,
    ) -> FittedMaskedLM:
        """The task, once model and tokenizer are found to fit.

        Raises:
            BadInput: the model predicts no masked tokens, or its tokenizer has no mask.
        """
        if not is_masked_lm(model):
            raise BadInput(f"{type(model).__name__} predicts no masked tokens: load a masked language model")
        if getattr(tokenizer, "mask_token_id", None) is None:
            raise BadInput("the tokenizer has no mask token, so nothing can be masked")
        return FittedMaskedLM(self.share, tokenizer, seed, batch_size, max_length)


def is_masked_lm(model: nn.Module) -> bool:
    """Whether the model's class, or one that it derives from, fills gaps.

    >>> is_masked_lm(nn.Linear(1, 1))
    False
    """
    return named_for(model, "ForMaskedLM")


@dataclass(frozen=True, eq=False)
class FittedMaskedLM:
    """How much is masked, and by which seed."""

    share: float
    tokenizer: Any = field(repr=False)
    seed: int = 0
    batch_size: int = 32
    max_length: int | None = None

    def losses(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        """Mean nats of each text's masked tokens; 0 for a text without any token to mask."""
        nats, counts = self._nats(model, batch)
        return nats / counts.clamp(min=1)

    def judge(self, model: nn.Module, corpus: Corpus) -> Outcome:
        """Perplexity, with the mean nats and the number of masked tokens of each text.

        Raises:
            BadInput: no text has a token to mask.
        """
        found = batches(corpus, self.tokenizer, model=model, batch_size=self.batch_size, max_length=self.max_length)
        rows = np.zeros((len(corpus), 2))
        with judging(model):
            for batch in track(found, len(found), "filling gaps"):
                rows[list(batch.index)] = torch.stack(self._nats(model, batch), -1).double().cpu().numpy()
        seen = rows[:, 1] > 0
        if not seen.any():
            raise BadInput(f"{corpus.source}: no text has a token that could be masked")
        scored = rows[seen]
        return Outcome(
            kind="masked-lm",
            metric="perplexity",
            value=perplexity(scored),
            per_example=scored[:, 0] / scored[:, 1],
            higher_is_better=False,
            texts=[text for text, ok in zip(corpus.texts, seen, strict=True) if ok],
            predictions=[float(x) for x in np.exp(scored[:, 0] / scored[:, 1])],
            rows=scored,
            measure=perplexity,
            weights=scored[:, 1],
            skipped={"no token to mask": int((~seen).sum())} if not seen.all() else {},
        )

    def _nats(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        tokens = batch.tokens[""]
        chosen = self.gaps(batch.texts, tokens.valid & ~tokens.special)
        ids = tokens.ids.masked_fill(chosen, self.tokenizer.mask_token_id)
        logits = model(**{**batch.inputs, "input_ids": ids}).logits.float()
        targets = torch.where(chosen, tokens.ids, -100)
        nats = nn.functional.cross_entropy(logits.transpose(1, 2), targets, ignore_index=-100, reduction="none")
        return nats.sum(-1), chosen.sum(-1)

    def gaps(self, texts: Sequence[Text], open_: Bool[Tensor, "batch token"]) -> Bool[Tensor, "batch token"]:
        """Which tokens are masked: a share of each text's own, at least one, drawn by its content."""
        chosen = torch.zeros_like(open_)
        for row, text in enumerate(texts):
            places = open_[row].nonzero().flatten()
            if len(places):
                digest = hashlib.sha256(f"{self.seed}:{text.id}".encode()).digest()
                draw = np.random.default_rng(int.from_bytes(digest[:8], "big"))
                count = max(1, round(self.share * len(places)))
                chosen[row, places[torch.from_numpy(draw.permutation(len(places))[:count]).to(places.device)]] = True
        return chosen
