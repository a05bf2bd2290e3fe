"""Gate sums: the loss's gradient at a site's gates, summed by part of the texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise.prune.importance.moments import Moments
from headwise.prune.importance.resampled import PARTS, weighted


@dataclass(frozen=True)
class GateTotals:
    """Sums of the loss's gradient at a site's gates, over all texts or over texts drawn again.

    Attributes:
        absolute: over examples, of the absolute gradient, [head].
        outer: over examples, of the gradients' outer product, [head, head].
        per_token: over tokens, of the absolute token gradient, [head].
        signed: over examples, of the gradient, [head].
        pulls: over tokens, of the squared gradient at the contexts, [column].
        tokens: how many tokens.
        per_batch: over batches, of the absolute gradient of the batch's summed loss, [head].
    """

    absolute: np.ndarray
    outer: np.ndarray
    per_token: np.ndarray
    signed: np.ndarray
    pulls: np.ndarray
    tokens: float
    per_batch: np.ndarray


@dataclass
class GateSums:
    """Sums of the loss's gradient at a site's gates, by part of the texts; heads are those that exist (`site.kept`).

    Attributes:
        absolute: sum over examples of the absolute gradient.
        outer: sum over examples of the gradients' outer product.
        per_token: sum over tokens of the absolute token gradient.
        per_batch: sum over batches of the absolute gradient of the batch's summed loss; a batch is in the part of its
            first text.
        signed: sum over examples of the gradient.
        pulls: sum over tokens of the squared gradient at the contexts.
        tokens: how many tokens were seen.
    """

    absolute: Float[Tensor, "part head"]
    outer: Float[Tensor, "part head head"]
    per_token: Float[Tensor, "part head"]
    per_batch: Float[Tensor, "part head"]
    signed: Float[Tensor, "part head"]
    pulls: Float[Tensor, "part column"]
    tokens: Float[Tensor, " part"]

    @classmethod
    def zeros(cls, heads: int, columns: int, device: torch.device | str = "cpu") -> GateSums:
        """Empty sums.

        >>> GateSums.zeros(2, 8).outer.shape
        torch.Size([64, 2, 2])
        """
        nothing = Moments.zeros(1, device).first
        by_head = nothing.new_zeros(PARTS, heads)
        return cls(
            absolute=by_head,
            outer=nothing.new_zeros(PARTS, heads, heads),
            per_token=by_head.clone(),
            per_batch=by_head.clone(),
            signed=by_head.clone(),
            pulls=nothing.new_zeros(PARTS, columns),
            tokens=nothing.new_zeros(PARTS),
        )

    def add(
        self,
        parts: Int[Tensor, " batch"],
        gradients: Float[Tensor, "batch head"],
        per_token: Float[Tensor, "batch head"],
        pulls: Float[Tensor, "batch column"],
        tokens: Int[Tensor, " batch"],
    ) -> None:
        """Count a batch in.

        Args:
            parts: which part each text belongs to.
            gradients: of each text's loss at the gates, summed over all its tokens.
            per_token: sum over each text's tokens of their absolute gradients.
            pulls: sum over each text's tokens of the squared gradient at the contexts.
            tokens: how many tokens each text has.

        >>> sums = GateSums.zeros(1, 1)
        >>> one = torch.ones(2, 1)
        >>> sums.add(torch.tensor([0, 5]), torch.tensor([[1.0], [-3.0]]), 3 * one, one, torch.tensor([2, 3]))
        >>> totals = sums.total()
        >>> totals.absolute.item(), totals.per_batch.item(), totals.per_token.item(), totals.tokens
        (4.0, 2.0, 6.0, 5.0)
        """
        gradients = gradients.to(self.absolute)
        parts = parts.to(self.absolute.device)
        self.absolute.index_add_(0, parts, gradients.abs())
        self.outer.index_add_(0, parts, gradients.unsqueeze(2) * gradients.unsqueeze(1))
        self.per_token.index_add_(0, parts, per_token.to(self.per_token))
        self.per_batch[parts[0]] += gradients.sum(0).abs()
        self.signed.index_add_(0, parts, gradients)
        self.pulls.index_add_(0, parts, pulls.to(self.pulls))
        self.tokens.index_add_(0, parts, tokens.to(self.tokens))

    def total(self, weights: np.ndarray | None = None) -> GateTotals:
        """The sums over all parts, each counted as often as `weights` says (once by default).

        >>> GateSums.zeros(2, 8).total().outer.shape
        (2, 2)
        """
        tables = (self.absolute, self.outer, self.per_token, self.signed, self.pulls, self.per_batch)
        absolute, outer, per_token, signed, pulls, per_batch = (
            weighted(table.cpu().numpy(), weights) for table in tables
        )
        tokens = float(weighted(self.tokens.cpu().numpy(), weights))
        return GateTotals(absolute, outer, per_token, signed, pulls, tokens, per_batch)
