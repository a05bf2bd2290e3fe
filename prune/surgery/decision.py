"""Decisions: which heads and key/value heads a site keeps. This is the truth that a checkpoint stores."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """What is left of one attention module; indices count in the dense model.

    Attributes:
        heads: query heads of the dense module.
        kv_heads: key/value heads of the dense module.
        kept: heads that are left.
        kv: for each key/value head that is there, the dense one it is; a repeated entry is a repeated head.
        ghost: the head that stays with zero output columns where none is left, or None. Without it caches
            and half of the families break on zero key/value heads.
        whole: whether the query and key rows stay, since a norm has to see all heads.
    """

    heads: int
    kv_heads: int
    kept: tuple[int, ...]
    kv: tuple[int, ...]
    ghost: int | None = None
    whole: bool = False

    @property
    def present(self) -> tuple[int, ...]:
        """Query heads that own rows: the kept ones, or the ghost."""
        return self.kept or ((self.ghost,) if self.ghost is not None else ())

    @property
    def group_size(self) -> int:
        """Query heads per key/value head that is there."""
        return len(self.present) // len(self.kv)


def dense(heads: int, kv_heads: int) -> Decision:
    """Nothing removed.

    >>> dense(4, 2).kv
    (0, 1)
    """
    return Decision(heads, kv_heads, tuple(range(heads)), tuple(range(kv_heads)))


def decide(now: Decision, remove: Sequence[int]) -> Decision:
    """The next decision, after some more heads are gone.

    Whole groups go with their key/value head. Where the groups that are left hold unequal numbers of query
    heads, keys and values are repeated by the greatest common divisor of those numbers.

    >>> decide(dense(4, 2), [0, 1]).kv        # the whole group
    (1,)
    >>> decide(dense(4, 2), [0]).kv           # unequal: one head of group 0, two of group 1
    (0, 1, 1)
    >>> decide(dense(2, 2), [0, 1]).ghost     # nothing left but a ghost
    0
    """
    kept = tuple(head for head in now.kept if head not in set(remove))
    group = now.heads // now.kv_heads
    if not kept:
        ghost = now.present[0]
        return Decision(now.heads, now.kv_heads, (), (ghost // group,), ghost, now.whole)
    sizes = Counter(head // group for head in kept)
    share = math.gcd(*sizes.values())
    kv = tuple(source for source in sorted(sizes) for _ in range(sizes[source] // share))
    return Decision(now.heads, now.kv_heads, kept, kv, None, now.whole)
