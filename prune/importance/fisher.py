"""Fisher: what a removal does to the loss, to second order, from gradients alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from headwise.prune.importance.calibration import Calibration
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
    #: Forward-backward passes over the calibration texts, and how many more per head.
    passes: ClassVar[float] = 1
    passes_per_head: ClassVar[float] = 0

    kind: Literal["fisher"] = "fisher"
    form: Literal["diagonal", "block"] = Field(
        default="diagonal", description="heads alone, or with the others of their site"
    )

    def score(self, calibration: Calibration) -> Scores:
        """Scores per head: the squared loss gradient, or the rank in the order of removal.

        Raises:
            BadInput: no task, or a loss without gradient.
        """
        found = calibration.gradients()
        outer = {name: (found.gates[name].outer / found.examples).cpu().numpy() for name in calibration.sites}
        if self.form == "block":
            costs = QuadraticCosts(outer)
            return Scores(self.kind, removal_ranks(calibration.sites, costs), costs)
        values = {
            name: spread(site, np.diag(outer[name])[: len(site.kept)]) for name, site in calibration.sites.items()
        }
        return Scores(self.kind, values)


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
