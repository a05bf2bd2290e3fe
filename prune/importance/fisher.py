"""Fisher: what a removal does to the loss, to second order, from gradients alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from headwise.analysis.sites import Site
from headwise.prune.importance.calibration import LOSSES, Calibration, Loss
from headwise.prune.importance.passes import Passes
from headwise.prune.importance.resampled import Resampled
from headwise.prune.importance.scores import Scores, removal_ranks, spread
from headwise.prune.selection.blocks import Block


class Fisher(BaseModel):
    """Mean squared gradient of the loss at a head's gate.

    F = E_x g(x) g(x)^T with g(x) the gradient of one text's loss at all gates. `diagonal` scores a head by
    F_hh; `block` counts what heads of one site do together, 1_S^T F 1_S for a removed set S, and scores by
    the order of removal. Exact at any batch size: gradients are squared text by text (Kwon et al., 2022, "A
    fast post-training pruning framework for transformers", squares those of batches).

    >>> Fisher(form="block").kind
    'fisher'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["fisher"] = "fisher"
    form: Literal["diagonal", "block"] = Field(
        default="diagonal", description="heads alone, or with the others of their site"
    )
    loss: Loss = Field(default="labels", description=LOSSES)

    def foretell(self, passes: Passes) -> None:
        """Count the pass of `score`."""
        passes.gradients(self.loss)

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head: the squared loss gradient, or the rank in the order of removal.

        Raises:
            BadInput: no task, or a loss without gradient.
        """
        found, sites = calibration.gradients(loss=self.loss), calibration.sites
        costs = QuadraticCosts(_outer(found, sites)) if self.form == "block" else None
        again = (lambda weights: QuadraticCosts(_outer(found, sites, weights))) if costs else None
        resampled = Resampled("texts drawn again", found.texts, partial(self._values, found, sites), costs=again)
        return Scores(self.kind, self._values(found, sites), costs, resampled=resampled)

    def _values(
        self, found: Any, sites: Mapping[str, Site], weights: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        outer = _outer(found, sites, weights)
        if self.form == "block":
            return removal_ranks(sites, QuadraticCosts(outer))
        return {name: spread(site, np.diag(outer[name])[: len(site.kept)]) for name, site in sites.items()}


def _outer(found: Any, sites: Mapping[str, Site], weights: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """F by site, of all texts or of texts drawn again."""
    return {name: found.gates[name].total(weights).outer / found.count(weights) for name in sites}


class QuadraticCosts:
    """Costs 1_S^T F 1_S per site: what heads of one site do to the loss together.

    Args:
        outer: site name -> F over the heads that exist, [kept, kept].
    """

    def __init__(self, outer: Mapping[str, np.ndarray]) -> None:
        self._outer = outer

    def start(self, block: Block) -> QuadraticBlock:
        """Costs of a block, summed over its calls.

        >>> from headwise.analysis.sites import Site
        >>> block = Block((Site("0", "attn", "attn.o", 2, 2, 8, kept=(0, 1)),))
        >>> QuadraticCosts({"0": np.array([[2.0, -1.0], [-1.0, 3.0]])}).start(block).costs([(0,), (0, 1)])
        array([2., 3.])
        """
        return QuadraticBlock(np.sum([self._outer[site.name] for site in block.sites], axis=0), block.kept)


class QuadraticBlock:
    """What a unit adds to 1_S^T F 1_S of one block."""

    def __init__(self, outer: np.ndarray, kept: tuple[int, ...]) -> None:
        self._outer = outer
        self._place = {head: place for place, head in enumerate(kept)}
        self._gone = np.zeros(len(outer))

    def costs(self, units: Sequence[tuple[int, ...]]) -> np.ndarray:
        """Growth of the quadratic form per unit, shape [unit].

        >>> QuadraticBlock(np.eye(2), (0, 1)).costs([(1,)])
        array([1.])
        """
        prices = []
        for unit in units:
            more = self._indicator(unit)
            prices.append(more @ self._outer @ more + 2 * (self._gone @ self._outer @ more))
        return np.array(prices)

    def remove(self, unit: tuple[int, ...]) -> None:
        """Let the unit go.

        >>> block = QuadraticBlock(np.ones((2, 2)), (0, 1))
        >>> block.remove((0,))
        >>> block.costs([(1,)])
        array([3.])
        """
        self._gone += self._indicator(unit)

    def _indicator(self, unit: tuple[int, ...]) -> np.ndarray:
        indicator = np.zeros(len(self._outer))
        indicator[[self._place[head] for head in unit]] = 1.0
        return indicator
