"""Collected: what one pass over the calibration texts leaves behind, all of it sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.analysis.sites import Site
from headwise.prune.importance.gate_sums import GateSums
from headwise.prune.importance.grouped import Grouped
from headwise.prune.importance.moments import Moments
from headwise.prune.importance.resampled import GROUPS, PARTS, weighted


@dataclass
class ColumnSums:
    """Sums over tokens of single columns of the contexts, by part of the texts: what resampling them needs.

    Attributes:
        weight: sum of the tokens' weights.
        first: sum of weighted contexts.
        second: sum of weighted squares.
        lengths: sum of the weighted length of each head's context.
    """

    weight: Float[Tensor, " part"]
    first: Float[Tensor, "part column"]
    second: Float[Tensor, "part column"]
    lengths: Float[Tensor, "part head"]

    @classmethod
    def zeros(cls, columns: int, heads: int, device: torch.device | str = "cpu") -> ColumnSums:
        """Empty sums.

        >>> ColumnSums.zeros(3, 1).first.shape
        torch.Size([64, 3])
        """
        nothing = Moments.zeros(1, device).first
        first = nothing.new_zeros(PARTS, columns)
        return cls(nothing.new_zeros(PARTS), first, first.clone(), nothing.new_zeros(PARTS, heads))

    def add(
        self,
        parts: Int[Tensor, " batch"],
        contexts: Float[Tensor, "batch query column"],
        weights: Float[Tensor, "batch query"],
    ) -> None:
        """Count a batch in; a token counts as its weight says.

        >>> sums = ColumnSums.zeros(1, 1)
        >>> sums.add(torch.tensor([3]), torch.tensor([[[1.0], [3.0]]]), torch.ones(1, 2))
        >>> sums.squares(centred=False), sums.squares(centred=True)
        (array([5.]), array([1.]))
        """
        parts = parts.to(self.weight.device)
        # What stands where nothing counts may be anything, infinity included.
        contexts = contexts.masked_fill(weights.unsqueeze(-1) == 0, 0.0)
        heavy = contexts * weights.unsqueeze(-1)
        self.first.index_add_(0, parts, heavy.sum(1).to(self.first))
        self.second.index_add_(0, parts, (heavy * contexts).sum(1).to(self.second))
        self.weight.index_add_(0, parts, weights.sum(1).to(self.weight))
        lengths = contexts.unflatten(-1, (self.lengths.shape[1], -1)).norm(dim=-1) * weights.unsqueeze(-1)
        self.lengths.index_add_(0, parts, lengths.sum(1).to(self.lengths))

    def mean_lengths(self, weights: np.ndarray | None = None) -> np.ndarray:
        """Mean length of each head's context, [head]; parts count as often as `weights` says."""
        total = max(float(weighted(self.weight.cpu().numpy(), weights)), 1e-300)
        return np.asarray(weighted(self.lengths.cpu().numpy(), weights) / total)

    def squares(self, centred: bool, weights: np.ndarray | None = None) -> np.ndarray:
        """Mean square of every column, about its mean if `centred`; parts count as often as `weights` says."""
        total = max(float(weighted(self.weight.cpu().numpy(), weights)), 1e-300)
        second = weighted(self.second.cpu().numpy(), weights) / total
        if not centred:
            return np.asarray(second)
        return np.maximum(second - np.square(weighted(self.first.cpu().numpy(), weights) / total), 0.0)


@dataclass
class Collected:
    """What one pass over the calibration texts leaves behind.

    Attributes:
        examples: how many texts were seen.
        texts: the same by part.
        batches: how many batches begin with a text of each part.
        gates: gradient sums by site (empty if nothing was differentiated).
        slopes: sum over tokens of the outer product of the loss gradient at the projection's output, by site.
        fit: moments of the contexts of seven texts in eight, by site.
        held: moments of the others, by site.
        columns: sums of the single columns of all texts' contexts, by site.
        grouped: moments of contexts and slopes by group of texts; None where nobody asked or they would be too large.
        weighted: whether a token counts with the squared norm of the loss gradient at the output.
        token_scores: whether the model's scores are those of tokens (or frames, or pixels), many a text.
        losses: what was differentiated, by the text's id.
    """

    examples: int = 0
    texts: np.ndarray = field(default_factory=lambda: np.zeros(PARTS))
    batches: np.ndarray = field(default_factory=lambda: np.zeros(PARTS))
    gates: dict[str, GateSums] = field(default_factory=dict)
    slopes: dict[str, Float[Tensor, "out out"]] = field(default_factory=dict)
    fit: dict[str, Moments] = field(default_factory=dict)
    held: dict[str, Moments] = field(default_factory=dict)
    columns: dict[str, ColumnSums] = field(default_factory=dict)
    grouped: Grouped | None = None
    weighted: bool = False
    token_scores: bool = False
    losses: dict[str, float] = field(default_factory=dict)

    def count(self, weights: np.ndarray | None = None) -> float:
        """How many texts there are if every part counts as often as `weights` says.

        >>> Collected(texts=np.ones(64)).count()
        64.0
        """
        return float(weighted(self.texts, weights))

    def add_contexts(
        self,
        site: Site,
        contexts: Float[Tensor, "batch query column"],
        valid: Bool[Tensor, "batch query"],
        held: Bool[Tensor, " batch"],
        parts: Int[Tensor, " batch"],
        slopes: Float[Tensor, "batch query out"] | None = None,
    ) -> None:
        """Count a batch's contexts in.

        Args:
            site: where they were seen.
            contexts: input of the output projection.
            valid: False where padded.
            held: True for texts that are held out of the fit.
            parts: which part each text belongs to.
            slopes: gradient of the loss at the projection's output; a token counts with its squared norm.
        """
        for sums, rows in ((self.fit, ~held), (self.held, held)):
            if site.name not in sums:
                sums[site.name] = Moments.zeros(contexts.shape[-1], contexts.device)
            for group, some in self._by_group(parts, rows):
                chosen = valid & some.to(valid.device).unsqueeze(-1)
                weights = None if slopes is None else slopes[chosen].square().sum(-1)
                if self.grouped is None:
                    sums[site.name].add(contexts[chosen], weights)
                    continue
                seen = Moments.zeros(contexts.shape[-1], contexts.device)
                seen.add(contexts[chosen], weights)
                sums[site.name] += seen
                self.grouped.add(site.name, group, seen)
        if site.name not in self.columns:
            self.columns[site.name] = ColumnSums.zeros(
                contexts.shape[-1], contexts.shape[-1] // site.head_dim, contexts.device
            )
        counts = valid if slopes is None else valid * slopes.masked_fill(~valid.unsqueeze(-1), 0.0).square().sum(-1)
        self.columns[site.name].add(parts, contexts, counts.to(contexts))

    def _by_group(
        self, parts: Int[Tensor, " batch"], rows: Bool[Tensor, " batch"]
    ) -> Iterator[tuple[int, Bool[Tensor, " batch"]]]:
        """The texts of each group among some of a batch; all together where nothing is kept by group."""
        if self.grouped is None:
            yield 0, rows
            return
        for group in range(GROUPS):
            some = rows & (parts % GROUPS == group).to(rows.device)
            if bool(some.any()):
                yield group, some

    def add_slopes(
        self,
        site: Site,
        slopes: Float[Tensor, "batch query out"],
        valid: Bool[Tensor, "batch query"],
        parts: Int[Tensor, " batch"],
    ) -> None:
        """Count a batch's gradients at the projection's output in.

        >>> found, site = Collected(), Site("0", "attn", "attn.o", 1, 1, 2)
        >>> slopes, valid = torch.tensor([[[1.0, 2.0], [9.0, 9.0]]]), torch.tensor([[True, False]])
        >>> found.add_slopes(site, slopes, valid, torch.tensor([0]))
        >>> found.slopes["0"].tolist()
        [[1.0, 2.0], [2.0, 4.0]]
        """
        if site.name not in self.slopes:
            self.slopes[site.name] = Moments.zeros(slopes.shape[-1], slopes.device).second
        for group, some in self._by_group(parts, torch.ones(len(parts), dtype=torch.bool)):
            chosen = valid & some.to(valid.device).unsqueeze(-1)
            products = (slopes[chosen].T @ slopes[chosen]).to(self.slopes[site.name])
            self.slopes[site.name] += products
            if self.grouped is not None:
                self.grouped.add_slopes(site.name, group, products)

    def contexts_of(self, name: str, weights: np.ndarray | None = None) -> Moments:
        """Moments of a site's contexts on all texts, or with every group as often as `weights` [part] says."""
        groups = None if self.grouped is None or weights is None else self.grouped.moments.get(name)
        if groups is None or weights is None:
            return self.fit[name] + self.held[name]
        total = Moments.zeros(len(groups[0].first), groups[0].first.device)
        for group, often in zip(groups, weights[:GROUPS], strict=True):
            total += group * float(often)
        return total

    def slopes_of(self, name: str, weights: np.ndarray | None = None) -> Float[Tensor, "out out"]:
        """Sums of the gradients' outer products at a site's output, likewise."""
        groups = None if self.grouped is None or weights is None else self.grouped.slopes.get(name)
        if groups is None or weights is None:
            return self.slopes[name]
        return torch.stack([often * group.double() for group, often in zip(groups, weights[:GROUPS], strict=True)]).sum(
            0
        )

    def complete(self, nothing: Mapping[str, Callable[[], Empty]], moments: bool, slopes: bool) -> None:
        """Give sites that no loss ran through the sums of nothing: to this task their heads are worth 0.

        Args:
            nothing: site name -> what says how large its sums are; asked only for sites that lack some.
            moments: whether there are to be moments of contexts.
            slopes: whether there are to be second moments of gradients.

        >>> found = Collected(examples=1, weighted=True)
        >>> found.complete({"0": lambda: Empty(2, 8, 8, "cpu")}, False, True)
        >>> found.gates["0"].total().absolute.tolist(), found.slopes["0"].shape, found.fit
        ([0.0, 0.0], torch.Size([8, 8]), {})
        """
        for name, make in nothing.items():
            if self.weighted and name not in self.gates:
                self.gates[name] = make().gates()
            if slopes and name not in self.slopes:
                self.slopes[name] = make().slopes()
            if moments and name not in self.fit:
                self.fit[name] = self.held[name] = make().moments()
                self.columns[name] = make().of_columns()


@dataclass(frozen=True)
class Empty:
    """How large the sums of a site are that nothing came by.

    Attributes:
        heads: that exist.
        columns: of its contexts.
        out: of its output.
        device: where they would be.
    """

    heads: int
    columns: int
    out: int
    device: torch.device | str

    def gates(self) -> GateSums:
        """Sums at its gates."""
        return GateSums.zeros(self.heads, self.columns, self.device)

    def moments(self) -> Moments:
        """Moments of its contexts."""
        return Moments.zeros(self.columns, self.device)

    def slopes(self) -> Tensor:
        """Second moments of gradients at its output."""
        return Moments.zeros(self.out, self.device).second

    def of_columns(self) -> ColumnSums:
        """Sums of single columns."""
        return ColumnSums.zeros(self.columns, self.heads, self.device)
