"""Task: the next token, for causal language models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch, token_limit
from headwise.analysis.corpus.encoding import encode
from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.errors import BadInput
from headwise.analysis.gates.uncached import uncached
from headwise.prune.tasks.outcome import Outcome, judging
from headwise.prune.tasks.windows import summed_losses, token_losses

_WIDEST = 1024


class CausalLM(BaseModel):
    """Perplexity per token: exp of all nats over all tokens, so long texts count by their length."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["causal-lm"] = "causal-lm"
    window: Annotated[int, Field(ge=2)] = Field(
        default=_WIDEST, description="tokens that the model sees at a time; at most what it allows"
    )
    stride: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="tokens by which the window moves on a longer text; half the window by default"
    )

    def fit(
        self,
        model: nn.Module,
        tokenizer: Any,
        calibration: Corpus,
        *,
        batch_size: int = 8,
        max_length: int | None = None,
        seed: int = 0,
    ) -> FittedCausalLM:
        """The task with its window cut to what the model allows.

        Raises:
            BadInput: the model does not predict the next token.
        """
        if not is_causal_lm(model):
            raise BadInput(
                f"{type(model).__name__} is no causal language model: load the checkpoint as one "
                "(AutoModelForCausalLM), or use task: {kind: agreement}"
            )
        window = token_limit(tokenizer, model, self.window) or self.window
        stride = min(self.stride or max(1, window // 2), window - 1)
        return FittedCausalLM(self, tokenizer, window, stride, batch_size)


def is_causal_lm(model: nn.Module) -> bool:
    """Whether the model's class, or one that it derives from, is a causal language model.

    >>> is_causal_lm(nn.Linear(2, 2))
    False
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    causal = any(kind.__name__ in names for kind in type(model).__mro__)
    # BERT and its kin stand in the mapping too, as decoders that they are only if the config says so.
    config: Any = getattr(model, "config", None)
    masked = any("Masked" in kind.__name__ for kind in type(model).__mro__)
    return causal and not masked and not getattr(config, "is_encoder_decoder", False)


@dataclass(frozen=True, eq=False)
class FittedCausalLM:
    """Window and stride for one model, dense or cut."""

    task: CausalLM
    tokenizer: Any = field(repr=False)
    window: int
    stride: int
    batch_size: int = 8

    def losses(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        """Mean nats per token of each text; 0 for a text of one token."""
        tokens = batch.tokens[""]
        logits = model(**batch.inputs, **uncached(model)).logits
        scored = tokens.valid.clone()
        # The first valid token has nothing before it but padding.
        scored[:, 1:] &= tokens.valid[:, :-1]
        scored[:, 0] = False
        nats = token_losses(logits, tokens.ids, scored)
        return nats.sum(-1) / scored.sum(-1).clamp(min=1)

    def judge(self, model: nn.Module, corpus: Corpus) -> Outcome:
        """Perplexity, with the mean nats per token and the number of tokens of each text.

        Raises:
            BadInput: no text has two tokens.
        """
        rows = [row.ids for row in encode(corpus.texts, self.tokenizer, None)]
        with judging(model):
            sums, counts = summed_losses(model, rows, self.window, self.stride, self.batch_size)
        seen = counts > 0
        if not seen.any():
            raise BadInput(f"{corpus.source}: no text of two or more tokens, so there is no next token to judge")
        scored = np.stack([sums[seen], counts[seen]], axis=1)
        return Outcome(
            kind=self.task.kind,
            metric="perplexity",
            value=perplexity(scored),
            per_example=sums[seen] / counts[seen],
            higher_is_better=False,
            texts=[text for text, ok in zip(corpus.texts, seen, strict=True) if ok],
            predictions=[float(x) for x in np.exp(sums[seen] / counts[seen])],
            rows=scored,
            measure=perplexity,
            weights=counts[seen],
            skipped={"fewer than two tokens": int((~seen).sum())} if not seen.all() else {},
        )


def perplexity(rows: np.ndarray) -> float:
    """Exp of all nats over all tokens, of rows (nats, tokens).

    >>> round(perplexity(np.array([[0.0, 1], [np.log(4), 1]])), 6)
    2.0
    """
    return float(np.exp(rows[:, 0].sum() / rows[:, 1].sum()))
