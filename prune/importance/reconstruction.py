"""Reconstruction: what a removal costs once the output projection is repaired, as the loss feels it."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from headwise.analysis.progress import track
from headwise.analysis.sites import Site
from headwise.prune.importance.alone import cost_alone
from headwise.prune.importance.calibration import AUTO, Calibration, Loss
from headwise.prune.importance.passes import Passes
from headwise.prune.importance.priced import Gone, Priced, Shelf
from headwise.prune.importance.resampled import MOST, Resampled
from headwise.prune.importance.rounds import foretell_rounds, ranks_in_rounds
from headwise.prune.importance.scores import Scores, removal_ranks
from headwise.prune.selection.blocks import Block, Room

if TYPE_CHECKING:
    from headwise.prune.importance.repair_cost import RepairCost


_IN_ROUNDS = "looked at again after every round: other texts would take all rounds again"
_TOO_WIDE = f"so wide a model's moments would take more than {MOST / 2**20:g} MiB by group of texts, and are not kept"


class Reconstruction(BaseModel):
    """Greedy removal by the loss that is left after the best linear repair (structured brain surgery).

    The cost of a set of heads is the squared change of the loss, to first order in the change of the
    block's output and averaged over texts, when the output projection makes up for them as well as it can;
    see `RepairCost`. Contexts are centred where the projection has a bias, which then takes the mean. The
    score of a head is its place in the order of removal.

    The loss's gradient weighs the directions of the block's output (`weight: output`); every token counts the
    same, as in the repair that follows. With `gradient` tokens count by their gradient, too: one forward pass
    less, but few texts may carry most of it. With `none` no loss is needed: all directions count the same,
    relative to the size of the output.

    These products of moments treat tokens as if each moved the loss by itself (Kronecker factors, Martens & Grosse,
    2015). Where a block moves many tokens alike and the model adds them up, as mean pooling does, that counts too
    little, and where only one token is read, too much. What single heads cost unrepaired is known without that: the
    squared gradient at their gates. `scaled` sets each block's costs so that in sum its heads cost just that. `auto`
    does so unless the loss is that of many tokens' scores a text, whose gradients do not add up to anything.

    Where the outputs score whole texts, `loss: auto` takes the gradient of the outputs themselves. That of the labels'
    loss is next to nothing for texts that the model is sure of, as it is of texts that it was trained on: what is
    felt would be what a few of the texts feel.

    All costs come from the dense model unless `recollect` says after how many heads the model, without them and
    repaired, is looked at again (`rounds.ranks_in_rounds`); then the order alone drives the selection.

    >>> Reconstruction().weight
    'output'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["reconstruction"] = "reconstruction"
    weight: Literal["gradient", "output", "none"] = Field(
        default="output",
        description="what the loss's gradient weighs: tokens and output directions, directions alone, or nothing",
    )
    loss: Loss | Literal["auto"] = Field(default="auto", description=AUTO)
    ridge: float = Field(default=1e-2, gt=0, le=10, description="added to the diagonal, in units of its mean")
    scaled: bool | Literal["auto"] = Field(
        default="auto",
        description="whether a block's costs are scaled to what the loss's gradient at its gates says; `auto` does "
        "so unless labels or predictions are of tokens; never with `weight: none`",
    )
    recollect: int | None = Field(
        default=None, ge=1, description="measure again after every so many heads; never if left out"
    )

    @model_validator(mode="after")
    def _scaled_by_something(self) -> Reconstruction:
        if self.scaled is True and self.weight == "none":
            raise ValueError(
                "scaled: true scales costs to the loss's gradient, which weight: none does without; leave one out"
            )
        return self

    def foretell(self, passes: Passes) -> None:
        """Count the passes of `score`: for the gradient and for the contexts, with `recollect` every round.

        >>> passes = Passes({}, texts=8, batches=1, scored=True)
        >>> Reconstruction(loss="outputs").foretell(passes)
        >>> passes.back, passes.forward
        (1.0, 1.0)
        """
        self._foretell_costs(passes)
        if self.recollect is not None:
            foretell_rounds(passes, self.recollect, self._foretell_costs)

    def _foretell_costs(self, passes: Passes) -> None:
        if self.weight != "none":
            passes.gradients(self.loss, moments=self.weight == "gradient", slopes=True)
        passes.moments(self.weight, self.loss)

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head: the rank in the order of removal; the costs drive the selection.

        Raises:
            BadInput: a weight other than `none` without a task, a loss without gradient, or fewer heads a round
                than go in one piece.
        """
        if self.recollect is not None:
            alone = self._costs(calibration).alone(calibration.sites)
            ranks = ranks_in_rounds(calibration, self.recollect, self._costs, self.ridge)
            return Scores(self.kind, ranks, resampled=replace(alone, unchosen=_IN_ROUNDS))
        costs = self._costs(calibration, grouped=True)
        again = {"costs": costs.on} if costs.grouped else {"unchosen": _TOO_WIDE}
        resampled = replace(costs.alone(calibration.sites), **again)
        return Scores(self.kind, removal_ranks(calibration.sites, costs), costs, resampled=resampled)

    def _costs(self, calibration: Calibration, grouped: bool = False) -> RepairCosts:
        # What `output` weighs by takes no moments of contexts: those are had from the forward pass.
        whole = self.weight == "gradient"
        slopes = None
        if self.weight != "none":
            slopes = calibration.gradients(moments=whole, slopes=True, loss=self.loss, grouped=grouped)
        contexts = calibration.moments(self.weight, self.loss, grouped)
        scaled = bool(self.scaled)
        if self.scaled == "auto" and self.loss != "outputs" and slopes is not None:
            scaled = not slopes.token_scores
        return RepairCosts(calibration.model, contexts, slopes, self.ridge, scaled=scaled)


class RepairCosts:
    """Costs after repair, block by block; calls of a shared module count together, as its one repair must.

    Args:
        model: where the projections are.
        contexts: moments of its contexts (`collected.Collected`).
        slopes: where the loss gradients at the outputs are, or None if all directions count the same.
        ridge: see `repair_cost.ridged`.
        scaled: whether what the heads of a block cost alone is to be, in sum, what their gates' gradients say.
        weights: how often each part of the texts counts, the same for all parts of a group; None for all once.
    """

    def __init__(
        self, model: Any, contexts: Any, slopes: Any, ridge: float, *, scaled: bool = False,
        weights: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        self._model, self._contexts, self._slopes, self._ridge = model, contexts, slopes, ridge
        self._scaled, self._weights, self._halves = scaled and slopes is not None, weights, dict[bytes, RepairCosts]()
        self._mark = ""
        self._known: dict[str, dict[Gone, dict[tuple[int, ...], float]]] = {}
        self._shelf = Shelf()

    @property
    def grouped(self) -> bool:
        """Whether there are costs of halves of the texts."""
        return all(found.grouped is not None for found in (self._contexts, self._slopes) if found is not None)

    def on(self, weights: np.ndarray) -> RepairCosts:
        """The costs on a half of the texts (`resampled.halves`), with prices remembered for the next budget."""
        key = weights.tobytes()
        if key not in self._halves:
            contexts, slopes = self._contexts, self._slopes
            half = RepairCosts(self._model, contexts, slopes, self._ridge, scaled=self._scaled, weights=weights)
            # One shelf for all, so that matrices take no more memory.
            half._shelf, half._mark = self._shelf, f" on half {len(self._halves)}"
            self._halves[key] = half
        return self._halves[key]

    def start(self, block: Block) -> Priced:
        """The costs of a block that has lost nothing in this selection."""
        known = self._known.setdefault(block.name, {})
        return Priced(block.name + self._mark, lambda: self._first(block), known, self._shelf)

    def ahead(self, rooms: Mapping[str, Room]) -> None:
        """Work out the prices that a greedy removal asks, one block after the other, where not all fit the memory.

        The order of removals inside a block does not depend on other blocks. So one block's matrices are made, used
        to the end and let go, where a removal that goes back and forth between blocks would make them again and again.
        """
        from headwise.prune.selection.greedy import greedy

        widths = [len(self._contexts.fit[name].first) for name in rooms]
        if len(rooms) < 2 or sum(2 * 8 * width**2 for width in widths) <= self._shelf.room:
            return
        for name, room in track(rooms.items(), total=len(rooms), label="Costs after repair"):
            greedy({name: copy.copy(room)}, self, math.inf)

    def _first(self, block: Block) -> RepairCost:
        from headwise.prune.importance.repair_cost import RepairCost

        site = block.sites[0]
        second, worth = self._measure(block)
        width = site.head_dim
        columns = {head: np.arange(place * width, (place + 1) * width) for place, head in enumerate(site.kept)}
        return RepairCost(second, worth, columns, self._ridge)

    def alone(self, sites: Mapping[str, Site]) -> Resampled:
        """How the cost of each head by itself depends on the texts."""
        return cost_alone(self._model, sites, self._contexts, self._slopes, self._scaled)

    def _measure(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        """Second moment of the contexts and worth of their columns to the loss."""
        from functools import reduce
        from operator import add

        from headwise.analysis.sites.projections import output_bias, output_weight

        site, found = block.sites[0], self._contexts
        moments = reduce(add, [found.contexts_of(call.name, self._weights) for call in block.sites])
        second = moments.matrix(centred=output_bias(self._model, site) is not None)
        weight = output_weight(self._model, site).double().cpu().numpy()
        if self._slopes is not None:
            slopes = sum(self._slopes.slopes_of(call.name, self._weights) for call in block.sites)
            worth = weight.T @ (slopes / self._slopes.count(self._weights)).cpu().numpy() @ weight
            return second, worth * (self._scale(block, moments, worth) if self._scaled else 1.0)
        worth = weight.T @ weight
        size = float(np.sum(worth * second))
        return second, worth / size if size > 0 else worth

    def _scale(self, block: Block, moments: Any, worth: np.ndarray) -> float:
        """What the block's heads cost one by one by their gates, over the same by the products of moments."""
        heads, width = len(block.sites[0].kept), block.sites[0].head_dim
        # Some projections read more columns than those of heads, behind them.
        price = (worth * moments.matrix(centred=False))[: heads * width, : heads * width]
        ours = float(np.einsum("hihj->", price.reshape(heads, width, heads, width)))
        gates = [self._slopes.gates[call.name].total(self._weights).outer for call in block.sites]
        theirs = sum(float(np.trace(outer[:heads, :heads])) for outer in gates) / self._slopes.count(self._weights)
        return theirs / ours if ours > 0 and theirs > 0 else 1.0
