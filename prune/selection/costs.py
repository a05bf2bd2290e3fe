"""Costs: what the removal of a few heads would do, given what is gone already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from headwise.analysis.errors import BadInput
from headwise.prune.selection.blocks import Block, Room


@runtime_checkable
class BlockCost(Protocol):
    """The costs inside one block while heads leave it one unit after the other."""

    def costs(self, units: Sequence[tuple[int, ...]]) -> np.ndarray:
        """What each unit would cost if it went next, shape [unit]."""
        ...

    def remove(self, unit: tuple[int, ...]) -> None:
        """Let the unit go; later costs count that it is gone."""
        ...


@runtime_checkable
class Costs(Protocol):
    """The costs of a model. Blocks do not influence one another: each has its own state."""

    def start(self, block: Block) -> BlockCost:
        """The costs of a block from which this selection has removed nothing yet."""
        ...


@runtime_checkable
class Ahead(Protocol):
    """Costs that are better worked out block by block before a removal goes back and forth between blocks."""

    def ahead(self, rooms: Mapping[str, Room]) -> None:
        """Make ready for a greedy removal from these rooms, which stay as they are."""
        ...


class AdditiveBlock:
    """A unit costs the sum of its heads' scores, whatever else is gone."""

    def __init__(self, scores: np.ndarray) -> None:
        """Scores of shape [head]."""
        self._scores = scores

    def costs(self, units: Sequence[tuple[int, ...]]) -> np.ndarray:
        """Sum of scores per unit, shape [unit].

        >>> AdditiveBlock(np.array([1.0, 2.0])).costs([(0,), (0, 1)])
        array([1., 3.])
        """
        return np.array([self._scores[list(unit)].sum() for unit in units])

    def remove(self, unit: tuple[int, ...]) -> None:
        """Change nothing: the score of a head is the same in any company.

        >>> AdditiveBlock(np.array([1.0, 2.0])).remove((0,))
        """


class AdditiveCosts:
    """Scores per head as costs: heads are independent of each other.

    Args:
        scores: site name -> [head], high = keep; NaN where a head is already gone.
    """

    def __init__(self, scores: Mapping[str, np.ndarray]) -> None:
        self._scores = scores

    def start(self, block: Block) -> AdditiveBlock:
        """Costs of a block: the sum over its calls.

        Raises:
            BadInput: a head that exists has no finite score.

        >>> from headwise.analysis.sites import Site
        >>> site = Site("0", "attn", "attn.o", 2, 2, 8, kept=(0, 1))
        >>> AdditiveCosts({"0": np.array([1.0, 2.0])}).start(Block((site,))).costs([(1,)])
        array([2.])
        """
        total = np.sum([np.asarray(self._scores[site.name], dtype=np.float64) for site in block.sites], axis=0)
        broken = [head for head in block.kept if not np.isfinite(total[head])]
        if broken:
            raise BadInput(
                f"site {block.name!r}: heads {', '.join(map(str, broken))} have no finite score, so nothing can be chosen by "
                "it; see that weights and texts give finite numbers (float32), or choose another score"
            )
        return AdditiveBlock(total)
