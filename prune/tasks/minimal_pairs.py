"""Task: of two sentences that differ in one point, the right one is likelier (BLiMP, Warstadt 2020)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch, token_limit
from headwise.analysis.corpus.encoding import encode
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.errors import BadInput
from headwise.analysis.gates.uncached import uncached
from headwise.prune.tasks.causal_lm import is_causal_lm
from headwise.prune.tasks.gaps import summed_gaps, text_losses
from headwise.prune.tasks.masked_lm import is_masked_lm
from headwise.prune.tasks.outcome import Outcome, judging
from headwise.prune.tasks.windows import summed_losses, token_losses


class MinimalPairs(BaseModel):
    """How often the text gets more probability than its pair, as a whole.

    A causal language model's probability is that of every token after those before it; a masked one's is its
    pseudo-likelihood, every token masked in turn (Salazar 2020). BLiMP's files fit as they are:
    `{text: sentence_good, pair: sentence_bad, label: UID}`; the label, if there is one, only groups the result.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["minimal-pairs"] = "minimal-pairs"

    def fit(
        self,
        model: nn.Module,
        tokenizer: Any,
        calibration: Corpus,
        *,
        batch_size: int = 32,
        max_length: int | None = None,
        seed: int = 0,
    ) -> FittedPairs:
        """The task, once model and texts are found to fit.

        Raises:
            BadInput: the model predicts no tokens, its tokenizer has no mask, or a text has no pair.
        """
        masked = is_masked_lm(model)
        if not masked and not is_causal_lm(model):
            raise BadInput(f"{type(model).__name__}: minimal pairs need a causal or masked language model")
        if masked and getattr(tokenizer, "mask_token_id", None) is None:
            raise BadInput("the tokenizer has no mask token, so nothing can be masked")
        _check(calibration)
        return FittedPairs(tokenizer, token_limit(tokenizer, model, max_length), batch_size, masked)


@dataclass(frozen=True, eq=False)
class FittedPairs:
    """How sentences are read."""

    tokenizer: Any = field(repr=False)
    limit: int | None = None
    batch_size: int = 32
    masked: bool = False

    def losses(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        """Softplus of the nats that the right sentence takes beyond the wrong one."""
        good = self._nats(model, batch.texts)
        bad = self._nats(model, [Text(text.pair or "") for text in batch.texts])
        return nn.functional.softplus(good - bad)

    def judge(self, model: nn.Module, corpus: Corpus) -> Outcome:
        """The share of pairs told right.

        Raises:
            BadInput: a text has no pair.
        """
        _check(corpus)
        alone = [replace(text, pair=None) for text in corpus.texts]
        others = [Text(text.pair or "") for text in corpus.texts]
        rows = encode([*alone, *others], self.tokenizer, self.limit)
        width = max(2, *(len(row.ids) for row in rows))
        with judging(model):
            if self.masked:
                nats, counts = summed_gaps(model, rows, self.tokenizer.mask_token_id, self.batch_size)
            else:
                nats, counts = summed_losses(model, [row.ids for row in rows], width, width, self.batch_size)
        half = len(alone)
        seen = (counts[:half] > 0) & (counts[half:] > 0)
        right = (nats[:half] < nats[half:])[seen].astype(np.float64)
        texts = [text for text, ok in zip(corpus.texts, seen, strict=True) if ok]
        labelled = all(text.label is not None for text in texts)
        return Outcome(
            kind="minimal-pairs",
            metric="accuracy",
            value=float(right.mean()) if len(right) else float("nan"),
            per_example=right,
            higher_is_better=True,
            texts=texts,
            predictions=["right" if ok else "wrong" for ok in right],
            labels=[text.label for text in texts] if labelled else None,
            skipped={"a sentence without a token to predict": int((~seen).sum())} if not seen.all() else {},
        )

    def _nats(self, model: nn.Module, texts: list[Text]) -> Float[Tensor, " batch"]:
        encoded = encode([replace(text, pair=None) for text in texts], self.tokenizer, self.limit)
        if self.masked:
            return text_losses(model, encoded, self.tokenizer.mask_token_id)
        rows = [row.ids for row in encoded]
        device: Any = model.device
        ids = torch.zeros(len(rows), max(1, *(len(row) for row in rows)), dtype=torch.long)
        valid = torch.zeros_like(ids, dtype=torch.bool)
        for i, row in enumerate(rows):
            ids[i, : len(row)], valid[i, : len(row)] = torch.from_numpy(row), True
        ids, valid = ids.to(device), valid.to(device)
        logits = model(input_ids=ids, attention_mask=valid.long(), **uncached(model)).logits
        scored = valid.clone()
        scored[:, 0] = False
        return token_losses(logits, ids, scored).sum(-1)


def _check(corpus: Corpus) -> None:
    if any(text.pair is None for text in corpus.texts):
        raise BadInput(
            f"{corpus.source}: minimal pairs need a wrong sentence beside each right one; name its column "
            "(`pair: sentence_bad`)"
        )
