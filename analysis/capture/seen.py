"""What a reducer sees: one site's maps and contexts in one batch, and which of their entries can count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.corpus.grids import Grid
from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site

#: Stacks that read the batch's first stream of tokens.
_FIRST_STREAM = ("", "encoder", "text")
#: Probability that a forbidden key may get from rounding.
_LEAK = 1e-6


@dataclass(frozen=True, eq=False)
class Seen:
    """One site in one batch, padded on the right.

    Attributes:
        site: which.
        maps: attention probabilities in float32, heads as in `site.kept`; None if no reducer needs them.
            Rows that are no query (see `queries`) hold whatever the kernel left there.
        contexts: what the heads hand to the output projection, in float32; None if nobody needs them.
        queries: rows that count: not padding, not broken.
        allowed: keys that a row could attend to: not padding, not later than a causal query, in the window.
            All False in rows that do not count.
        query_stream: name of the queries' tokens in `batch.tokens`, None if they are no tokens (patches).
        key_stream: the same for the keys.
        start: number of the first row; above 0 where the maps come in tiles of rows.
        grid: how the tokens lie in an image, if they are its patches and that can be told.
        ordered: whether numbers of tokens say how far apart they are; not so in an image without a grid.
    """

    site: Site
    maps: Float[Tensor, "batch head query key"] | None
    contexts: Float[Tensor, "batch query head head_dim"] | None
    queries: Bool[Tensor, "batch query"]
    allowed: Bool[Tensor, "batch query key"]
    query_stream: str | None = ""
    key_stream: str | None = ""
    start: int = 0
    grid: Grid | None = None
    ordered: bool = True

    @cached_property
    def mass(self) -> Float[Tensor, "batch head query"]:
        """How much each row of each head sums to."""
        return self.map.sum(-1)

    @cached_property
    def complete(self) -> bool:
        """Whether every row counts."""
        return bool(self.queries.all())

    @cached_property
    def choices(self) -> Float[Tensor, "batch query"]:
        """How many keys each row could attend to; 0 in rows that do not count."""
        return self.allowed.sum(-1, dtype=torch.float32)

    @cached_property
    def uniform(self) -> Float[Tensor, "batch query key"]:
        """The map of an indifferent head: 1/(number of allowed keys) on each allowed key, else 0."""
        return self.allowed / self.choices.clamp(min=1)[..., None]

    @property
    def map(self) -> Float[Tensor, "batch head query key"]:
        """The maps; a reducer that reads them has declared that it needs them."""
        if self.maps is None:
            raise BadInput(f"site {self.site.name}: no maps were captured; the reducer must have 'maps' in its needs")
        return self.maps

    @property
    def context(self) -> Float[Tensor, "batch query head head_dim"]:
        """The contexts; a reducer that reads them has declared that it needs them."""
        if self.contexts is None:
            raise BadInput(
                f"site {self.site.name}: no contexts were captured; the reducer must have 'contexts' in its needs"
            )
        return self.contexts


@runtime_checkable
class Reducer(Protocol):
    """Something computed over the data, batch by batch, in constant memory.

    Attributes:
        needs: what it reads, of `maps` and `contexts`.
    """

    needs: frozenset[str]

    def update(self, batch: Batch, seen: Mapping[str, Seen]) -> None:
        """Take in one batch. The tensors belong to the pass: they must not be kept or changed."""
        ...

    def result(self) -> dict[str, np.ndarray]:
        """Named arrays whose head axes follow `heads_of(sites)`; NaN for heads that are not there."""
        ...


def positions_of(sites: Mapping[str, Site]) -> dict[str, np.ndarray]:
    """Where each site's remaining heads stand on the head axis of all evidence.

    >>> positions_of({"0": Site("0", "a", "a.o", heads=4, kv_heads=4, head_dim=8, kept=(0, 3))})
    {'0': array([0, 3])}
    """
    starts = np.cumsum([0, *(site.heads for site in sites.values())])
    return {
        name: start + np.asarray(site.kept, dtype=np.int64)
        for (name, site), start in zip(sites.items(), starts, strict=False)
    }


def streams_of(site: Site, tokens: Mapping[str, Tokens]) -> tuple[str | None, str | None]:
    """Which streams of tokens a site's queries and keys are, None where they are no tokens.

    >>> streams_of(Site("0", "a", "a.o", heads=1, kv_heads=1, head_dim=1), {})
    (None, None)
    """
    first = "" if "" in tokens else None
    mine = first if site.stack in _FIRST_STREAM else site.stack if site.stack in tokens else None
    if site.stack == "decoder" and mine is None:
        mine = first
    if site.kind == "pool":
        return None, mine
    return mine, first if site.kind == "cross" else mine


def is_causal(module: nn.Module, site: Site) -> bool | None:
    """Whether a site's queries may only look back, as the module declares it; None if it does not say.

    >>> is_causal(nn.Linear(1, 1), Site("0", "a", "a.o", heads=1, kv_heads=1, head_dim=1)) is None
    True
    """
    if site.kind != "self":
        return False
    for part in module.modules():
        for flag in ("is_causal", "is_decoder"):
            value = getattr(part, flag, None)
            if isinstance(value, bool):
                return value
    return None


class Visibility:
    """Which keys each query of a batch can see; computed once for all sites with the same rule.

    Args:
        batch: the batch.
        rows: which query rows the maps show, where they come in tiles; None for all.
        causal: by site, which of those that do not declare it only look back; filled in by what is seen first.
    """

    def __init__(self, batch: Batch, rows: slice | None = None, causal: dict[str, bool] | None = None) -> None:
        self.batch, self.rows = batch, rows
        self.start: int = 0 if rows is None else rows.start
        self._causal = {} if causal is None else causal
        self._known: dict[Any, tuple[Tensor, Tensor, Tensor | None]] = {}

    def width(self, site: Site, length: int) -> int:
        """How many keys there are, when there is no map to tell."""
        _, keys = streams_of(site, self.batch.tokens)
        return length if keys is None else int(self.batch.tokens[keys].valid.shape[1])

    def __call__(
        self, site: Site, module: nn.Module, maps: Tensor | None, length: int, width: int
    ) -> tuple[Bool[Tensor, "batch query"], Bool[Tensor, "batch query key"]]:
        """The rows that count and the keys allowed to them, checked against the map where there is one."""
        tokens = next(iter(self.batch.tokens.values()), None)
        device = maps.device if maps is not None else tokens.valid.device if tokens is not None else None
        causal = is_causal(module, site)
        if causal is None:
            if site.name not in self._causal:
                seen_back = maps is not None and width > 1 and not bool(maps.triu(1 + self.start).any())
                self._causal[site.name] = seen_back
            causal = self._causal[site.name]
        for span in _spans(site, module, causal):
            queries, allowed, forbidden = self._rule(site, length, width, causal, span, device)
            leak = 0.0
            # Where everything is allowed there is nothing to look for, and a pass over the maps is saved.
            if maps is not None and forbidden is not None:
                leak = float((maps.sum(1) * forbidden).nan_to_num().amax())
            if leak <= _LEAK * max(1, site.heads):
                return queries, allowed
        raise BadInput(_leak_message(site, leak, causal, maps, queries, self.start))

    def _rule(
        self, site: Site, length: int, width: int, causal: bool, span: int | None, device: Any
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows that count, keys allowed to them, and those that are not (None if there are none)."""
        query_stream, key_stream = streams_of(site, self.batch.tokens)
        rule = (query_stream, key_stream, length, width, causal, span, str(device))
        if rule not in self._known:
            queries = self._valid(site, query_stream, length, device, self.rows)
            allowed = queries[:, :, None] & self._valid(site, key_stream, width, device)[:, None, :]
            rows = torch.arange(self.start, self.start + length, device=device)
            ahead = torch.arange(width, device=device)[None, :] - rows[:, None]
            if causal:
                allowed = allowed & (ahead <= 0)
            if span is not None:
                allowed = allowed & ((ahead > -span) if causal else (ahead.abs() <= span))
            queries = queries & allowed.any(-1)
            forbidden = queries[..., None] & ~allowed
            self._known[rule] = queries, allowed, forbidden if bool(forbidden.any()) else None
        return self._known[rule]

    def _valid(self, site: Site, stream: str | None, length: int, device: Any, rows: slice | None = None) -> Tensor:
        count = len(self.batch.texts)
        if stream is None:
            return torch.ones(count, length, dtype=torch.bool, device=device)
        valid = self.batch.tokens[stream].valid
        if rows is not None:
            valid = valid[:, rows]
        if tuple(valid.shape) != (count, length):
            raise BadInput(
                f"site {site.name}: its maps are {length} long, but the batch has {valid.shape[1]} tokens of "
                f"{valid.shape[0]} texts. Batches must come from headwise.analysis.corpus.batches for this "
                "model."
            )
        return valid.to(device)


def _spans(site: Site, module: nn.Module, causal: bool) -> list[int | None]:
    """How far a row can look, the likeliest rule first; the maps decide.

    A window around the query is counted from end to end by some configs and to one side by others, with the query
    itself or without. Where the module declares none, the config may still have one for every layer (Mistral), or
    for none of them.
    """
    if site.window is not None:
        return [site.window] if causal else [site.window // 2, site.window - 1, site.window]
    config = getattr(module, "config", None)
    window = getattr(config, "sliding_window", None)
    everywhere = causal and isinstance(window, int) and not getattr(config, "layer_types", None)
    return [window, None] if everywhere else [None]


def _leak_message(site: Site, leak: float, causal: bool, maps: Tensor | None, queries: Tensor, start: int) -> str:
    later = maps is not None and causal and bool((maps.sum(1).triu(1 + start) * queries[..., None]).nan_to_num().any())
    if later:
        return (
            f"site {site.name}: attention to later tokens ({leak:.2g}) in a causal block: the eager "
            "kernel lost its mask. Load the model with attn_implementation='eager' and try again."
        )
    where = f"padding or keys outside the declared window of {site.window}" if site.window else "padding"
    return (
        f"site {site.name}: attention to {where} ({leak:.2g}), expected exactly 0. The model ignores its "
        "attention mask: use texts of one length (batch size 1), or leave this site out with sites=."
    )
