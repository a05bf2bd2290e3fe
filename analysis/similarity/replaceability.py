"""Replaceability: what of a head's output the other heads of its site cannot rebuild."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from headwise.analysis.capture.seen import Reducer, Seen, positions_of
from headwise.analysis.corpus.batching import Batch
from headwise.analysis.devices import brought_in, exact
from headwise.analysis.sites import Site
from headwise.analysis.sites.projections import output_weight

#: Added to the diagonal of the covariance, as a share of its mean: keeps the inverse finite.
DAMPING = 1e-6


class Replaceability(Reducer):
    """The share of a head's output that a linear map of the other heads of its site cannot rebuild.

    tr(W_S [(C⁻¹)_SS]⁻¹ W_Sᵀ) / tr(W_S C_SS W_Sᵀ), C the covariance of the site's contexts over query rows, W the
    output projection, S the head's columns: the residual of the best least-squares reconstruction with a bias
    over the output itself (the structured-OBS score of Kurtic et al. 2023, normalised). 0: the others can do
    its work, as with a copy of it in the site; 1: they know nothing of it, the level of independent heads.
    NaN for a head whose output never varies. Memory: the square of a site's context width, in float64.

    Args:
        sites: the sites.
        model: whose output projections weigh the directions.

    >>> class Block(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.o = nn.Linear(2, 1)
    >>> site = Site("0", "", "o", heads=2, kv_heads=2, head_dim=1, kept=(0, 1))
    >>> contexts = torch.tensor([[[[1.0], [-2.0]], [[3.0], [-6.0]], [[4.0], [-8.0]]]])
    >>> every = torch.ones(1, 3, 3, dtype=torch.bool)
    >>> measure = Replaceability({"0": site}, Block())
    >>> from headwise.analysis.corpus.texts import Text
    >>> measure.update(Batch({}, [Text("a")], {}), {"0": Seen(site, None, contexts, every[:, :, 0], every)})
    >>> bool((measure.result()["statistics/replaceability"] < 1e-3).all())
    True
    """

    needs = frozenset({"contexts"})
    totals = ("squares", "sums", "rows")

    def __init__(self, sites: Mapping[str, Site], model: nn.Module) -> None:
        self.sites = {name: site for name, site in sites.items() if site.kept}
        self.model = model
        self._at = positions_of(sites)
        self._heads = sum(site.heads for site in sites.values())
        self.squares: dict[str, Tensor] = {}
        self.sums: dict[str, Tensor] = {}
        self.rows = dict.fromkeys(self.sites, 0)

    def update(self, batch: Batch, seen: Mapping[str, Seen]) -> None:
        """Take in one batch, or one tile of it."""
        for name, one in seen.items():
            if name not in self.sites:
                continue
            rows = one.context[one.queries].flatten(1)
            rows = rows.to(exact(rows.device)).double()
            if name not in self.sums:
                width = rows.shape[1]
                self.squares[name] = torch.zeros(width, width, dtype=torch.float64, device=rows.device)
                self.sums[name] = torch.zeros(width, dtype=torch.float64, device=rows.device)
            if self.sums[name].device != rows.device:
                # Sums that were kept on disk come back in main memory.
                self.squares[name], self.sums[name] = (t[name].to(rows.device) for t in (self.squares, self.sums))
            self.squares[name] += rows.T @ rows
            self.sums[name] += rows.sum(0)
            self.rows[name] += len(rows)

    def result(self) -> dict[str, np.ndarray]:
        """`statistics/replaceability` `[head]`: the share that cannot be rebuilt, 0 to 1."""
        found = np.full(self._heads, np.nan)
        for name, site in self.sites.items():
            if self.rows[name] > 1:
                mean = self.sums[name] / self.rows[name]
                covariance = self.squares[name] / self.rows[name] - torch.outer(mean, mean)
                with brought_in(self.model.get_submodule(site.output.partition(":")[0])):
                    weight = output_weight(self.model, site).to(covariance.device).double()
                found[self._at[name]] = unrebuilt(covariance, weight, site.head_dim).cpu().numpy()
        return {"statistics/replaceability": found}


def unrebuilt(covariance: Tensor, weight: Tensor, width: int) -> Tensor:
    """The share of each head's output, `[head]`, that the other columns cannot rebuild linearly.

    >>> unrebuilt(torch.eye(2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64), 1).round().tolist()
    [1.0, 1.0]
    """
    heads = len(covariance) // width
    # A cut site keeps a ghost's columns beyond those of real heads; they carry nothing.
    weight = weight[:, : heads * width]
    scale = covariance.diagonal().mean()
    if not bool(scale > 0):
        return torch.full((heads,), torch.nan)
    inverse = torch.linalg.inv(covariance + DAMPING * scale * torch.eye(len(covariance)).to(covariance))
    found = []
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        left = torch.linalg.inv(inverse[own, own])
        mine = weight[:, own]
        output = torch.einsum("oi,ij,oj->", mine, covariance[own, own], mine)
        residual = torch.einsum("oi,ij,oj->", mine, left, mine)
        dead = output <= 1e-12 * scale * mine.square().sum().clamp(min=1e-30)
        found.append(torch.where(dead, torch.nan, (residual / output).clamp(0, 1)))
    return torch.stack(found)
