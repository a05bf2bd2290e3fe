"""Meters: what heads take of a resource – parameters, operations, cache, time – and so what their removal frees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from headwise.prune.selection.blocks import Block


@runtime_checkable
class Meter(Protocol):
    """What a block takes of a resource while it has certain heads."""

    @property
    def name(self) -> str:
        """Name of the resource, as a recipe says it."""
        ...

    @property
    def total(self) -> float | int:
        """What the dense model takes in all, parts that have no heads included."""
        ...

    def used(self, block: Block, kept: Sequence[int]) -> float:
        """What the block takes with these heads, over all its calls."""
        ...


@dataclass(frozen=True)
class Heads:
    """Heads themselves as the resource.

    >>> from headwise.analysis.sites import Site
    >>> Heads(12).used(Block((Site("0", "attn", "attn.o", 2, 2, 8, kept=(0, 1)),)), (0,))
    1.0
    """

    total: float | int
    name: str = "heads"

    def used(self, block: Block, kept: Sequence[int]) -> float:
        """The number of heads over all calls."""
        return float(len(kept) * len(block.sites))


@dataclass(frozen=True)
class Linear:
    """A resource of which every query head, and every key/value group that is still read, takes a fixed part.

    A site that lost all its heads keeps one ghost head, which takes what a head takes.

    Attributes:
        name: of the resource.
        total: what the dense model takes.
        per_head: block name -> part of a query head, over all calls.
        per_group: block name -> part of a key/value group, over all calls.
        first: block name -> what a block that has lost a head takes besides, if anything.
    """

    name: str
    total: float | int
    per_head: Mapping[str, float]
    per_group: Mapping[str, float]
    first: Mapping[str, float] = field(default_factory=dict)

    def used(self, block: Block, kept: Sequence[int]) -> float:
        """Parts of the heads and of the groups that they read.

        >>> from headwise.analysis.sites import Site
        >>> block = Block((Site("0", "attn", "attn.o", 4, 2, 8, kept=(0, 1, 2, 3)),))
        >>> meter = Linear("parameters", 100.0, {"0": 3.0}, {"0": 5.0})
        >>> meter.used(block, (0, 1, 2)), meter.used(block, (0, 1)), meter.used(block, ())
        (19.0, 11.0, 8.0)
        """
        groups = {block.sites[0].group(head) for head in kept}
        first = self.first.get(block.name, 0.0) if len(kept) < block.heads else 0.0
        return self.per_head[block.name] * max(len(kept), 1) + self.per_group[block.name] * max(len(groups), 1) + first


@dataclass(frozen=True)
class Table:
    """A resource that was measured for every number of heads: time.

    Attributes:
        name: of the resource.
        total: what the dense model takes.
        rows: block name -> what it takes with 0, 1, 2, … heads, over all calls.
    """

    name: str
    total: float | int
    rows: Mapping[str, Sequence[float]]

    def used(self, block: Block, kept: Sequence[int]) -> float:
        """The row's entry.

        >>> from headwise.analysis.sites import Site
        >>> block = Block((Site("0", "attn", "attn.o", 2, 2, 8, kept=(0, 1)),))
        >>> Table("milliseconds", 9.0, {"0": [1.0, 1.5, 3.0]}).used(block, (1,))
        1.5
        """
        return float(self.rows[block.name][len(kept)])


def freed(meter: Meter, block: Block, left: Sequence[int], heads: Sequence[int]) -> float:
    """What a block frees when heads leave it.

    >>> from headwise.analysis.sites import Site
    >>> freed(Heads(2), Block((Site("0", "attn", "attn.o", 2, 2, 8, kept=(0, 1)),)), (0, 1), (1,))
    1.0
    """
    return meter.used(block, left) - meter.used(block, [head for head in left if head not in heads])


def gone(meter: Meter, blocks: Mapping[str, Block]) -> float:
    """What earlier cuts have freed already.

    >>> from headwise.analysis.sites import Site
    >>> gone(Heads(3), {"0": Block((Site("0", "attn", "attn.o", 3, 3, 8, kept=(0,)),))})
    2.0
    """
    return math.fsum(meter.used(block, range(block.heads)) - meter.used(block, block.kept) for block in blocks.values())
