"""What a role is: a relation between a query token and key tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headwise.analysis.batching import Tokens
from headwise.analysis.seen import Seen


@dataclass(frozen=True, eq=False)
class View:
    """The tokens that one kind of map runs between, for a relation to choose from.

    Attributes:
        queries: the rows' tokens, None if they are no tokens.
        keys: the columns' tokens, None if they are no tokens.
        allowed: which keys each row could attend to.
        same: whether rows and columns are the same sequence.
    """

    queries: Tokens | None
    keys: Tokens | None
    allowed: Bool[Tensor, "batch query key"]
    same: bool

    @property
    def ahead(self) -> Int[Tensor, "query key"]:
        """How many tokens a key stands after the query; negative before it."""
        _, length, width = self.allowed.shape
        device = self.allowed.device
        return torch.arange(width, device=device)[None] - torch.arange(length, device=device)[:, None]


#: Which allowed keys are in the relation to each row; None where the relation makes no sense.
Relation = Callable[[View], Tensor | None]


@dataclass(frozen=True)
class Role:
    """A role that a head can play.

    Attributes:
        name: in arrays, recipes and reports.
        says: what a head in this role does, as a report puts it.
        relation: the keys it attends to; None if the role is measured another way.
        beyond: roles whose relation is part of this one: only what goes beyond the best of them counts.
    """

    name: str
    says: str
    relation: Relation | None = None
    beyond: tuple[str, ...] = ()


def view_of(one: Seen, tokens: Mapping[str, Tokens]) -> View:
    """What a relation may know about one site's maps.

    >>> callable(view_of)
    True
    """
    queries = None if one.query_stream is None else tokens[one.query_stream]
    keys = None if one.key_stream is None else tokens[one.key_stream]
    return View(queries, keys, one.allowed, same=one.site.kind == "self")
