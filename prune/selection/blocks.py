"""Blocks and units: what can be removed in one piece."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from headwise.analysis.sites import Site

Unit = Literal["group", "even", "head"]


@dataclass(frozen=True)
class Block:
    """One attention module with all its calls: whatever is cut, is cut in every call.

    Attributes:
        sites: the calls of the module, one for most models, all layers for ALBERT.
    """

    sites: tuple[Site, ...]

    @property
    def name(self) -> str:
        """Name of the first call, by which the block is known.

        >>> Block((Site("0", "attn", "attn.o", 2, 2, 8, kept=(0, 1)),)).name
        '0'
        """
        return self.sites[0].name

    @property
    def heads(self) -> int:
        """Heads of the dense module.

        >>> Block((Site("0", "attn", "attn.o", 2, 2, 8, kept=(0, 1)),)).heads
        2
        """
        return self.sites[0].heads

    @property
    def kept(self) -> tuple[int, ...]:
        """Heads that still exist.

        >>> Block((Site("0", "attn", "attn.o", 2, 2, 8, kept=(1,)),)).kept
        (1,)
        """
        return self.sites[0].kept

    @property
    def gone(self) -> int:
        """Heads that an earlier cut took, counted once per call.

        >>> Block((Site("0", "attn", "attn.o", 2, 2, 8, kept=(1,)),)).gone
        1
        """
        return (self.heads - len(self.kept)) * len(self.sites)


def blocks_of(sites: Mapping[str, Site]) -> dict[str, Block]:
    """Sites gathered by module, in forward order, under the name of the first call.

    >>> list(blocks_of({"0": Site("0", "attn", "attn.o", 2, 2, 8, kept=(0, 1))}))
    ['0']
    """
    modules: dict[str, list[Site]] = {}
    for site in sites.values():
        modules.setdefault(site.module, []).append(site)
    blocks = (Block(tuple(calls)) for calls in modules.values())
    return {block.name: block for block in blocks}


@dataclass
class Room:
    """What may still be removed from a block.

    Attributes:
        block: the module.
        protected: heads that a keep-rule names.
        minimum: heads that must stay.
        unit: `group` removes whole key/value groups, `even` one query head of every group, `head` any head
            (unequal groups). Without grouped queries the three are the same.
        left: heads that are still there; `take` shortens it.
    """

    block: Block
    protected: Collection[int]
    minimum: int
    unit: Unit
    left: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.left = self.block.kept
        if self.block.sites[0].kv_heads == self.block.heads:
            # Every head is a group of its own: one of every group would be all.
            self.unit = "head"

    def pieces(self) -> list[tuple[int, ...]]:
        """Sets of heads that can go in one piece now; for `even`, the free heads of each group.

        >>> site = Site("0", "attn", "attn.o", heads=4, kv_heads=2, head_dim=8, kept=(0, 1, 2, 3))
        >>> Room(Block((site,)), {0}, 1, "group").pieces()
        [(2, 3)]
        """
        site = self.block.sites[0]
        if any(call.refusal for call in self.block.sites):
            return []
        groups: dict[int, list[int]] = {}
        for head in self.left:
            groups.setdefault(site.group(head), []).append(head)
        if self.unit == "even":
            free = [tuple(head for head in group if head not in self.protected) for group in groups.values()]
            enough = len(self.left) - len(free) >= self.minimum
            return free if enough and all(free) else []
        whole = [[head] for head in self.left] if self.unit == "head" else list(groups.values())
        sets = [tuple(heads) for heads in whole]
        return [
            heads
            for heads in sets
            if not set(heads) & set(self.protected) and len(self.left) - len(heads) >= self.minimum
        ]

    def take(self, heads: tuple[int, ...]) -> None:
        """Remember that the heads are gone.

        >>> room = Room(Block((Site("0", "attn", "attn.o", 2, 2, 8, kept=(0, 1)),)), (), 1, "head")
        >>> room.take((0,))
        >>> room.left, room.pieces()
        ((1,), [])
        """
        self.left = tuple(head for head in self.left if head not in heads)
