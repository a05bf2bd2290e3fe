"""What a role is: a relation between a query token and key tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headwise.analysis.capture.seen import Seen
from headwise.analysis.corpus.batching import Tokens
from headwise.analysis.corpus.grids import Grid
from headwise.analysis.errors import BadInput


@dataclass(frozen=True, eq=False)
class View:
    """The tokens that one kind of map runs between, for a relation to choose from.

    Attributes:
        queries: the rows' tokens, None if they are no tokens.
        keys: the columns' tokens, None if they are no tokens.
        allowed: which keys each row could attend to.
        same: whether rows and columns are the same sequence, and say where a token stands.
        start: number of the first row, where maps come in tiles of rows.
        grid: how rows and columns lie in an image, where they are its patches.
    """

    queries: Tokens | None
    keys: Tokens | None
    allowed: Bool[Tensor, "batch query key"]
    same: bool
    start: int = 0
    grid: Grid | None = None

    @property
    def ahead(self) -> Int[Tensor, "query key"]:
        """How many tokens a key stands after the query; negative before it."""
        _, length, width = self.allowed.shape
        device = self.allowed.device
        rows = torch.arange(self.start, self.start + length, device=device)
        return torch.arange(width, device=device)[None] - rows[:, None]

    @property
    def beside(self) -> tuple[Int[Tensor, "query key"], Int[Tensor, "query key"]]:
        """How many patches a key lies below the query, and to its right; huge from and to what is no patch."""
        if self.grid is None:
            raise BadInput("these maps are not of an image whose patches are known; ask for `grid` first")
        row, column = (place.to(self.allowed.device) for place in self.grid.places)
        mine = slice(self.start, self.start + self.allowed.shape[1])
        # From one learned token to itself it is no step of 0: it stands nowhere.
        nowhere = 10_000_000 * (row[mine, None] < 0)
        return row[None] - row[mine, None] + nowhere, column[None] - column[mine, None] + nowhere


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
        within: a wider role: this one is played only if what the wider adds to it is too small to be a role.
        on: what it is looked for on: the user's `texts`, or `random` sequences said twice (causal models).
        lexical: whether it matters what a token is, so that dealing the tokens anew is a null; else only where.
        active: whether a head that plays it does something, which is a reason to keep it.
    """

    name: str
    says: str
    relation: Relation | None = None
    beyond: tuple[str, ...] = ()
    within: str = ""
    on: str = "texts"
    lexical: bool = False
    active: bool = True


def view_of(one: Seen, tokens: Mapping[str, Tokens]) -> View:
    """What a relation may know about one site's maps.

    >>> callable(view_of)
    True
    """
    queries = None if one.query_stream is None else rows_of(tokens[one.query_stream], one)
    keys = None if one.key_stream is None else tokens[one.key_stream]
    return View(
        queries, keys, one.allowed, same=one.site.kind == "self" and one.ordered, start=one.start, grid=one.grid
    )


def rows_of(tokens: Tokens, one: Seen) -> Tokens:
    """The tokens of the rows that a tile shows; all of them where it shows all.

    >>> callable(rows_of)
    True
    """
    length = one.queries.shape[1]
    if length == tokens.valid.shape[1]:
        return tokens
    rows = slice(one.start, one.start + length)
    cut = {f.name: value[:, rows] for f in fields(tokens) if isinstance(value := getattr(tokens, f.name), Tensor)}
    return replace(tokens, **cut)
