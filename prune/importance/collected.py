"""Collected: what one pass over the calibration texts leaves behind, all of it sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headwise.analysis.sites import Site
from headwise.prune.importance.moments import Moments


@dataclass
class GateSums:
    """Sums of the loss's gradient at a site's gates; axes are the heads that exist (`site.kept`).

    Attributes:
        absolute: sum over examples of the absolute gradient.
        outer: sum over examples of the gradients' outer product.
        per_token: sum over tokens of the absolute token gradient.
        per_batch: sum over batches of the absolute gradient of the batch's summed loss.
        signed: sum over examples of the gradient.
        tokens: how many tokens were seen.
    """

    absolute: Float[Tensor, " head"]
    outer: Float[Tensor, "head head"]
    per_token: Float[Tensor, " head"]
    per_batch: Float[Tensor, " head"]
    signed: Float[Tensor, " head"]
    tokens: int = 0

    @classmethod
    def zeros(cls, heads: int, device: torch.device | str = "cpu") -> GateSums:
        """Empty sums.

        >>> GateSums.zeros(2).outer.shape
        torch.Size([2, 2])
        """
        empty = Moments.zeros(heads, device)
        first = empty.first
        return cls(first, empty.second, first.clone(), first.clone(), first.clone())

    def add(self, gradients: Float[Tensor, "batch head"], per_token: Float[Tensor, " head"], tokens: int) -> None:
        """Count a batch in.

        Args:
            gradients: of each text's loss at the gates, summed over all its tokens.
            per_token: sum over the batch's tokens of their absolute gradients.
            tokens: how many tokens the batch has.

        >>> sums = GateSums.zeros(1)
        >>> sums.add(torch.tensor([[1.0], [-3.0]]), torch.tensor([6.0]), 5)
        >>> sums.absolute.item(), sums.per_batch.item(), sums.per_token.item()
        (4.0, 2.0, 6.0)
        """
        gradients = gradients.to(self.absolute)
        self.absolute += gradients.abs().sum(0)
        self.outer += gradients.T @ gradients
        self.per_token += per_token.to(self.per_token)
        self.per_batch += gradients.sum(0).abs()
        self.signed += gradients.sum(0)
        self.tokens += tokens


@dataclass
class Collected:
    """What one pass over the calibration texts leaves behind.

    Attributes:
        examples: how many texts were seen.
        gates: gradient sums by site (empty if nothing was differentiated).
        slopes: sum over tokens of the outer product of the loss gradient at the projection's output, by site.
        fit: moments of the contexts of seven texts in eight, by site.
        held: moments of the others, by site.
        weighted: whether a token counts with the squared norm of the loss gradient at the output.
    """

    examples: int = 0
    gates: dict[str, GateSums] = field(default_factory=dict)
    slopes: dict[str, Float[Tensor, "out out"]] = field(default_factory=dict)
    fit: dict[str, Moments] = field(default_factory=dict)
    held: dict[str, Moments] = field(default_factory=dict)
    weighted: bool = False

    def add_contexts(
        self,
        site: Site,
        contexts: Float[Tensor, "batch query column"],
        valid: Bool[Tensor, "batch query"],
        held: Bool[Tensor, " batch"],
        slopes: Float[Tensor, "batch query out"] | None = None,
    ) -> None:
        """Count a batch's contexts in.

        Args:
            site: where they were seen.
            contexts: input of the output projection.
            valid: False where padded.
            held: True for texts that are held out of the fit.
            slopes: gradient of the loss at the projection's output; a token counts with its squared norm.
        """
        for sums, rows in ((self.fit, ~held), (self.held, held)):
            if site.name not in sums:
                sums[site.name] = Moments.zeros(contexts.shape[-1], contexts.device)
            chosen = valid & rows.to(valid.device).unsqueeze(-1)
            weights = None if slopes is None else slopes[chosen].square().sum(-1)
            sums[site.name].add(contexts[chosen], weights)
        if slopes is not None:
            if site.name not in self.slopes:
                self.slopes[site.name] = Moments.zeros(slopes.shape[-1], slopes.device).second
            self.slopes[site.name] += (slopes[valid].T @ slopes[valid]).to(self.slopes[site.name])

    def complete(self, nothing: Mapping[str, Callable[[], tuple[GateSums, Moments | None, Tensor]]]) -> None:
        """Give sites that no loss ran through the sums of nothing: to this task their heads are worth 0.

        Args:
            nothing: site name -> what makes empty gate sums, moments (None if they are not collected) and slopes;
                asked only for sites that lack something, since a wide site's are large.

        >>> found = Collected(examples=1, weighted=True)
        >>> found.complete({"0": lambda: (GateSums.zeros(2), None, torch.zeros(8, 8))})
        >>> found.gates["0"].absolute.tolist()
        [0.0, 0.0]
        """
        tables = (self.fit, self.held, *((self.gates, self.slopes) if self.weighted else ()))
        for name, make in nothing.items():
            if all(name in table for table in tables):
                continue
            gates, moments, slopes = make()
            if self.weighted:
                self.gates.setdefault(name, gates)
            if moments is not None:
                self.fit.setdefault(name, moments)
                self.held.setdefault(name, moments)
                if self.weighted:
                    self.slopes.setdefault(name, slopes)
