"""Pairs: sums from which a linear map of contexts to what a block lacks can be fitted and judged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg import cho_solve
from torch import Tensor

from headwise.prune.importance.moments import Moments
from headwise.prune.importance.repair_cost import factored


@dataclass
class Pairs:
    """Sums over tokens of what a site sees (contexts) and what its output lacks.

    Attributes:
        seen: moments of the contexts.
        first: sum of what is missing.
        cross: sum of outer products, missing by context.
        missing: sum of squares of what is missing.
        size: sum of squares of the dense block's output.
    """

    seen: Moments
    first: Float[Tensor, " out"]
    cross: Float[Tensor, "out column"]
    missing: float = 0.0
    size: float = 0.0

    @classmethod
    def zeros(cls, out: int, columns: int, device: torch.device | str = "cpu") -> Pairs:
        """Empty sums.

        >>> Pairs.zeros(2, 3).cross.shape
        torch.Size([2, 3])
        """
        seen = Moments.zeros(columns, device)
        return cls(seen, seen.second.new_zeros(out), seen.second.new_zeros(out, columns))

    @property
    def tokens(self) -> int:
        """How many tokens were seen.

        >>> Pairs.zeros(2, 3).tokens
        0
        """
        return self.seen.tokens

    def add(
        self,
        contexts: Float[Tensor, "token column"],
        missing: Float[Tensor, "token out"],
        output: Float[Tensor, "token out"],
    ) -> None:
        """Count tokens in.

        >>> pairs = Pairs.zeros(1, 1)
        >>> pairs.add(torch.tensor([[2.0]]), torch.tensor([[6.0]]), torch.tensor([[1.0]]))
        >>> pairs.cross.item(), pairs.missing
        (12.0, 36.0)
        """
        self.seen.add(contexts)
        self.first += missing.to(self.first).sum(0)
        self.cross += (missing.T @ contexts).to(self.cross)
        self.missing += float(missing.double().square().sum())
        self.size += float(output.double().square().sum())

    def __add__(self, other: Pairs) -> Pairs:
        """The sums of both sets of tokens together."""
        return Pairs(
            self.seen + other.seen,
            self.first + other.first,
            self.cross + other.cross,
            self.missing + other.missing,
            self.size + other.size,
        )

    def solve(self, gone: np.ndarray, ridge: float, with_bias: bool) -> tuple[np.ndarray, np.ndarray]:
        """Least squares: what to add to the weight and to the bias.

        Args:
            gone: columns that are silenced; they do not change.
            ridge: added to the diagonal in units of its mean; draws the change to zero.
            with_bias: whether there is a bias to take what is left of the mean.

        Returns:
            change of the weight [out, column] and of the bias [out].

        >>> pairs = Pairs.zeros(1, 2)
        >>> pairs.add(torch.tensor([[1.0, 0.0], [2.0, 0.0]]), torch.tensor([[3.0], [6.0]]), torch.ones(2, 1))
        >>> pairs.solve(np.array([1]), 1e-9, with_bias=False)[0].round(6)
        array([[3., 0.]])
        """
        tokens = max(self.tokens, 1)
        second, mean = self.seen.matrix(centred=with_bias), self.seen.mean()
        first, cross = (self.first / tokens).cpu().numpy(), (self.cross / tokens).cpu().numpy()
        if with_bias:
            cross = cross - np.outer(first, mean)
        kept = np.setdiff1d(np.arange(len(second)), gone)
        change = np.zeros_like(cross)
        if len(kept):
            # The scale of the ridge is that of the kept columns: the others are silent here.
            factor = factored(second[np.ix_(kept, kept)], ridge)
            change[:, kept] = cho_solve(factor, cross[:, kept].T).T
        return change, first - change @ mean if with_bias else np.zeros(len(cross))

    def error(self, change: np.ndarray | None = None, moved: np.ndarray | None = None) -> float:
        """Root mean square of what is missing after a change, relative to the dense output without bias.

        >>> pairs = Pairs.zeros(1, 1)
        >>> pairs.add(torch.tensor([[2.0]]), torch.tensor([[6.0]]), torch.tensor([[4.0]]))
        >>> pairs.error(), pairs.error(np.array([[3.0]]), np.zeros(1))
        (1.5, 0.0)
        """
        square = self.missing
        if change is not None and moved is not None:
            second, first_seen = self.seen.second.cpu().numpy(), self.seen.first.cpu().numpy()
            first, cross = self.first.cpu().numpy(), self.cross.cpu().numpy()
            square += float(np.sum((change @ second) * change) - 2 * np.sum(change * cross))
            square += float(self.tokens * moved @ moved - 2 * moved @ first + 2 * moved @ change @ first_seen)
        return float(np.sqrt(max(square, 0.0) / self.size)) if self.size > 0 else 0.0
