"""Moments: what linear repair needs to know about the contexts of one projection, summed in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


@dataclass
class Moments:
    """Weighted sums over tokens; their size does not depend on the data.

    Attributes:
        weight: sum of the tokens' weights.
        first: sum of weighted contexts.
        second: sum of weighted outer products of contexts.
        tokens: how many tokens were seen.
    """

    weight: Float[Tensor, ""]
    first: Float[Tensor, " column"]
    second: Float[Tensor, "column column"]
    tokens: int = 0

    @classmethod
    def zeros(cls, columns: int, device: torch.device | str = "cpu") -> Moments:
        """Empty sums.

        >>> Moments.zeros(3).second.shape
        torch.Size([3, 3])
        """
        # Apple's GPUs have no float64; there the sums live in the main memory.
        where = "cpu" if torch.device(device).type == "mps" else device
        second = torch.zeros(columns, columns, dtype=torch.float64, device=where)
        return cls(second.new_zeros(()), second.new_zeros(columns), second)

    def add(self, contexts: Float[Tensor, "token column"], weights: Float[Tensor, " token"] | None = None) -> None:
        """Count tokens in, each with its weight (1 by default).

        >>> moments = Moments.zeros(2)
        >>> moments.add(torch.tensor([[1.0, 2.0]]))
        >>> moments.second.tolist()
        [[1.0, 2.0], [2.0, 4.0]]
        """
        heavy = contexts if weights is None else contexts * weights.unsqueeze(-1)
        self.second += (heavy.T @ contexts).to(self.second)
        self.first += heavy.to(self.first).sum(0)
        self.weight += len(contexts) if weights is None else weights.to(self.weight).sum()
        self.tokens += len(contexts)

    def __add__(self, other: Moments) -> Moments:
        """The moments of both sets of tokens together."""
        return Moments(
            self.weight + other.weight,
            self.first + other.first,
            self.second + other.second,
            self.tokens + other.tokens,
        )

    def __mul__(self, times: float) -> Moments:
        """The moments with every token counted so often."""
        return Moments(times * self.weight, times * self.first, times * self.second, self.tokens)

    def __iadd__(self, other: Moments) -> Moments:
        """Count the tokens of other moments in."""
        self.weight += other.weight
        self.first += other.first
        self.second += other.second
        self.tokens += other.tokens
        return self

    def mean(self) -> Float[np.ndarray, " column"]:
        """Weighted mean of the contexts; zeros if nothing was counted.

        >>> moments = Moments.zeros(1)
        >>> moments.add(torch.tensor([[1.0], [3.0]]))
        >>> moments.mean()
        array([2.])
        """
        return (self.first / self._total()).cpu().numpy()

    def matrix(self, centred: bool) -> Float[np.ndarray, "column column"]:
        """Weighted second moment of the contexts per token, about their mean if `centred`.

        >>> moments = Moments.zeros(1)
        >>> moments.add(torch.tensor([[1.0], [3.0]]))
        >>> moments.matrix(centred=True), moments.matrix(centred=False)
        (array([[1.]]), array([[5.]]))
        """
        second = (self.second / self._total()).cpu().numpy()
        if centred:
            mean = self.mean()
            second = second - np.outer(mean, mean)
        return np.asarray((second + second.T) / 2)

    def _total(self) -> Float[Tensor, ""]:
        return self.weight if float(self.weight) > 0 else torch.ones_like(self.weight)
