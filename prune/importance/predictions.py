"""Predictions: a loss without labels, whose squared gradient is the divergence from what the model now predicts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch
from headwise.analysis.errors import BadInput
from headwise.prune.tasks.divergence import independent


@dataclass(frozen=True)
class Predictions:
    """The surprise of a prediction that is drawn from the model itself.

    The divergence KL(model || model with gates) and its gradient are 0 where all gates are 1, so first-order scores
    would see nothing. Its second derivative is E_x E_y g g^T, with g the gradient of -log p(y | x) and y drawn from the
    model's own p (the Fisher information): so squares of this loss's gradients give the divergence to second order,
    for any model with predictions and any raw text. A text's tokens are drawn one by one, and their sum is divided
    by the root of their number: its squares average over tokens.

    Attributes:
        seed: of the draws; with the text's content it fixes each, whatever the batches.
    """

    seed: int = 0

    def losses(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        """Surprise of each text's drawn prediction, in nats, shape [batch].

        Raises:
            BadInput: the model predicts nothing, or not one thing per text or token.
        """
        logits = logits_of(model, batch)
        if logits.ndim == 2:
            valid = torch.ones(len(logits), 1, dtype=torch.bool)
            logits = logits.unsqueeze(1)
        else:
            valid = valid_of(batch, logits)
        each_alone = independent(model)
        rows = []
        for text, row, real in zip(batch.texts, logits, valid.to(logits.device), strict=True):
            # Not the seeds of the random directions, so that both losses can be asked for in one run.
            generator = torch.Generator().manual_seed((int(text.id[:12], 16) + 7919 * (self.seed + 1)) % 2**63)
            real_row = row[real]
            each = _surprise(real_row if row.dtype == torch.float64 else real_row.float(), each_alone, generator)
            rows.append(each.sum() / max(len(each), 1) ** 0.5)
        return torch.stack(rows)


def logits_of(model: nn.Module, batch: Batch) -> Tensor:
    """What a model predicts of a batch.

    Raises:
        BadInput: it predicts nothing.
    """
    logits: Tensor | None = getattr(model(**batch.inputs), "logits", None)
    if logits is None:
        raise BadInput(f"loss predictions: {type(model).__name__} predicts nothing (no logits); use loss: outputs")
    return logits


def valid_of(batch: Batch, logits: Tensor) -> Tensor:
    """Which of the predictions are of real tokens, [batch, token].

    Raises:
        BadInput: there is not one prediction per token of any stream.
    """
    for stream in ("decoder", ""):
        tokens = batch.tokens.get(stream)
        if tokens is not None and tokens.valid.shape == logits.shape[:2]:
            return tokens.valid
    raise BadInput(
        f"loss predictions: predictions of shape {tuple(logits.shape)} are not one per text or token; use loss: outputs"
    )


def _surprise(logits: Tensor, each_alone: bool, generator: torch.Generator) -> Float[Tensor, " token"]:
    """-log p of a drawn prediction per row of [token, class]; one class is a number with unit variance."""
    if logits.shape[-1] == 1:
        noise = torch.randn(logits.shape, generator=generator).to(logits)
        return (logits * noise).sum(-1)
    if each_alone:
        drawn = (torch.rand(logits.shape, generator=generator).to(logits) < logits.detach().sigmoid()).to(logits)
        return nn.functional.binary_cross_entropy_with_logits(logits, drawn, reduction="none").sum(-1)
    chances = logits.detach().softmax(-1).cumsum(-1)
    uniform = torch.rand(len(logits), 1, generator=generator).to(logits)
    drawn = (chances < uniform).sum(-1).clamp(max=logits.shape[-1] - 1)
    return nn.functional.cross_entropy(logits, drawn, reduction="none")
