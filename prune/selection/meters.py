"""Meters: what heads take of a resource – parameters, operations, cache, time – and so what their removal frees."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
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

    def added(self, cut: Collection[str]) -> float:
        """What blocks that have lost heads, by name, bring in together beside what each of them takes."""
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

    def added(self, cut: Collection[str]) -> float:
        """Nothing."""
        return 0.0


@dataclass(frozen=True)
class Linear:
    """A resource of which every query head, and every key/value group that is still read, takes a fixed part.

    A site that lost all its heads keeps one ghost head, which takes what a head takes. The first cut in a stack whose
    blocks share a bias table (T5) gives each of them a table of its own.

    Attributes:
        name: of the resource.
        total: what the dense model takes.
        per_head: block name -> part of a query head, over all calls.
        per_group: block name -> part of a key/value group, over all calls.
        once: names of blocks -> what the first cut in any of them brings in, for all of them.
    """

    name: str
    total: float | int
    per_head: Mapping[str, float]
    per_group: Mapping[str, float]
    once: Mapping[tuple[str, ...], float] = field(default_factory=dict)

    def used(self, block: Block, kept: Sequence[int]) -> float:
        """Parts of the heads and of the groups that they read.

        >>> from headwise.analysis.sites import Site
        >>> block = Block((Site("0", "attn", "attn.o", 4, 2, 8, kept=(0, 1, 2, 3)),))
        >>> meter = Linear("parameters", 100.0, {"0": 3.0}, {"0": 5.0})
        >>> meter.used(block, (0, 1, 2)), meter.used(block, (0, 1)), meter.used(block, ())
        (19.0, 11.0, 8.0)
        """
        groups = {block.sites[0].group(head) for head in kept}
        return self.per_head[block.name] * max(len(kept), 1) + self.per_group[block.name] * max(len(groups), 1)

    def added(self, cut: Collection[str]) -> float:
        """The parts of the stacks in which there was a first cut.

        >>> meter = Linear("parameters", 100.0, {}, {}, {("0", "1"): 7.0, ("2",): 1.0})
        >>> meter.added(["0", "1"]), meter.added([])
        (7.0, 0.0)
        """
        return math.fsum(part for names, part in self.once.items() if not set(names).isdisjoint(cut))


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

    def added(self, cut: Collection[str]) -> float:
        """Nothing: blocks take their time one after the other."""
        return 0.0


def freed(meter: Meter, block: Block, left: Sequence[int], heads: Sequence[int]) -> float:
    """What a block itself frees when heads leave it.

    >>> from headwise.analysis.sites import Site
    >>> freed(Heads(2), Block((Site("0", "attn", "attn.o", 2, 2, 8, kept=(0, 1)),)), (0, 1), (1,))
    1.0
    """
    return meter.used(block, left) - meter.used(block, [head for head in left if head not in heads])


def brought_in(meter: Meter | None, was: Collection[str], now: Collection[str]) -> float:
    """What first cuts bring in where other blocks, by name, have lost heads `now`; nothing where heads are counted.

    >>> brought_in(Linear("parameters", 100.0, {}, {}, {("0", "1"): 7.0}), [], ["1"]), brought_in(None, [], ["1"])
    (7.0, 0.0)
    """
    return 0.0 if meter is None else meter.added(now) - meter.added(was)


def all_freed(
    meter: Meter, blocks: Iterable[Block], before: Mapping[str, Sequence[int]], after: Mapping[str, Sequence[int]]
) -> float:
    """What is freed between two states of all blocks: block name -> heads that are left.

    >>> from headwise.analysis.sites import Site
    >>> block = Block((Site("0", "attn", "attn.o", 3, 3, 8, kept=(0, 1, 2)),))
    >>> meter = Linear("parameters", 100.0, {"0": 3.0}, {"0": 0.0}, {("0",): 1.0})
    >>> all_freed(meter, [block], {"0": (0, 1, 2)}, {"0": (2,)}), all_freed(meter, [block], {"0": (0, 2)}, {"0": (2,)})
    (5.0, 3.0)
    """
    listed = list(blocks)
    alone = math.fsum(meter.used(block, before[block.name]) - meter.used(block, after[block.name]) for block in listed)
    was, now = ([block.name for block in listed if len(left[block.name]) < block.heads] for left in (before, after))
    return alone - brought_in(meter, was, now)


def gone(meter: Meter, blocks: Mapping[str, Block]) -> float:
    """What earlier cuts have freed already.

    >>> from headwise.analysis.sites import Site
    >>> gone(Heads(3), {"0": Block((Site("0", "attn", "attn.o", 3, 3, 8, kept=(0,)),))})
    2.0
    """
    dense = {name: range(block.heads) for name, block in blocks.items()}
    return all_freed(meter, blocks.values(), dense, {name: block.kept for name, block in blocks.items()})
